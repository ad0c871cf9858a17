// cpu.kv.gather: rows come out bit for bit from both orders of a cache, zeros for negative slots.
#include <gtest/gtest.h>

#include "../paged_cache.h"
#include "ops/kv/gather.h"

namespace lz::kernels {
extern const KernelFamily kernels_kv_gather_cpu;
}  // namespace lz::kernels

namespace lz {
namespace {
using testing_kv::Array;
using testing_kv::kAbsent;

constexpr int64_t kBlocks = 3, kSize = 4, kHeads = 2, kD = 6;

int32_t Gather(Array& cache, Array& slots, Array& out) {
  return testing_kv::Launch(kernels::kernels_kv_gather_cpu[0], {cache.tensor(), slots.tensor(), kAbsent, out.tensor()},
                            {kBlocks, kSize, kHeads, kD, 0});
}

TEST(CpuKvGather, CopiesRowsOfEveryDTypeFromBothOrders) {
  const std::vector<int32_t> wanted{7, -1, 7, 0, 11};
  for (DType type : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kI8, DType::kF64}) {
    for (const std::vector<size_t>& order : {std::vector<size_t>{}, {0, 2, 1, 3}}) {
      Array cache(type, {kBlocks, kSize, kHeads, kD}, 1, order), slots(DType::kI32, wanted);
      Array out(type, {int64_t(wanted.size()), kHeads, kD}, 9);
      ASSERT_EQ(Gather(cache, slots, out), 0);
      for (size_t i = 0; i < wanted.size(); ++i) {
        for (int64_t h = 0; h < kHeads; ++h) {
          const auto row = out.Row({int64_t(i), h, 0});
          const int64_t slot = wanted[i];
          EXPECT_EQ(row, slot < 0 ? std::vector<char>(row.size()) : cache.Row({slot / kSize, slot % kSize, h, 0}));
        }
      }
    }
  }
}

TEST(CpuKvGather, RefusesSlotsBeyondTheCache) {
  Array cache(DType::kF32, {kBlocks, kSize, kHeads, kD}, 1), out(DType::kF32, {2, kHeads, kD}, 9);
  Array slots(DType::kI64, std::vector<int64_t>{0, kBlocks * kSize});
  EXPECT_EQ(Gather(cache, slots, out), ops::kv::kSlotOutOfRange);
}

}  // namespace
}  // namespace lz
