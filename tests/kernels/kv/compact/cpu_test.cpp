// cpu.kv.compact: blocks move whole, pairs that collide are refused before anything is written.
#include <gtest/gtest.h>

#include "../paged_cache.h"
#include "ops/kv/compact.h"

namespace lz::kernels {
extern const KernelFamily kernels_kv_compact_cpu;
}  // namespace lz::kernels

namespace lz {
namespace {
using testing_kv::Array;

constexpr int64_t kBlocks = 5;

struct Compact {
  explicit Compact(std::vector<int64_t> pairs)
      : keys(DType::kBF16, {kBlocks, 2, 3, 4}, 1),
        values(DType::kBF16, {kBlocks, 2, 3, 7}, 2),
        flat(DType::kI64, pairs) {
    shape = {int64_t(pairs.size()) / 2, 2};
  }
  int32_t Run() {
    lz_tensor moves = flat.tensor();
    moves.ndim = 2;
    moves.shape = shape.data();
    moves.strides = strides.data();
    return testing_kv::Launch(kernels::kernels_kv_compact_cpu[0], {keys.tensor(), values.tensor(), moves},
                              {kBlocks, 2, 3, 4, 7, shape[0]});
  }
  Array keys, values, flat;
  std::vector<int64_t> shape, strides{2, 1};
};

std::vector<char> Block(const Array& cache, int64_t block) {
  const size_t size = cache.bytes().size() / kBlocks;
  return {cache.bytes().begin() + block * int64_t(size), cache.bytes().begin() + (block + 1) * int64_t(size)};
}

TEST(CpuKvCompact, MovesBlocksAndNothingElse) {
  Compact call({4, 0, -1, -1, 4, 2});
  const Compact before = call;
  ASSERT_EQ(call.Run(), 0);
  const int64_t source[kBlocks] = {4, 1, 4, 3, 4};
  for (int64_t b = 0; b < kBlocks; ++b) {
    EXPECT_EQ(Block(call.keys, b), Block(before.keys, source[b])) << b;
    EXPECT_EQ(Block(call.values, b), Block(before.values, source[b])) << b;
  }
}

TEST(CpuKvCompact, RefusesPairsThatCollideOrLieOutside) {
  const std::pair<std::vector<int64_t>, int32_t> all[] = {
      {{0, 1, 1, 2}, ops::kv::kPairInvalid},    {{0, 1, 2, 1}, ops::kv::kPairInvalid},
      {{3, 3}, ops::kv::kPairInvalid},          {{0, kBlocks}, ops::kv::kSlotOutOfRange},
      {{kBlocks, 0}, ops::kv::kSlotOutOfRange}, {{0, -1}, ops::kv::kSlotOutOfRange},
  };
  for (const auto& [pairs, code] : all) {
    Compact call(pairs);
    const std::vector<char> before = call.keys.bytes();
    EXPECT_EQ(call.Run(), code);
    EXPECT_EQ(call.keys.bytes(), before);
  }
}

}  // namespace
}  // namespace lz
