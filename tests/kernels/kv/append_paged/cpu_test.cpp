// cpu.kv.append_paged: rows reach their slots bit for bit in both orders of a cache, and nothing else is touched.
#include <gtest/gtest.h>

#include "../paged_cache.h"
#include "ops/kv/append_paged.h"

namespace lz::kernels {
extern const KernelFamily kernels_kv_append_paged_cpu;
}  // namespace lz::kernels

namespace lz {
namespace {
using testing_kv::Array;
using testing_kv::kAbsent;

constexpr int64_t kBlocks = 3, kSize = 4, kHeads = 2, kDK = 8, kDV = 5;

struct Append {
  Append(DType type, std::vector<size_t> order, std::vector<int64_t> the_slots)
      : keys(type, {kBlocks, kSize, kHeads, kDK}, 1, order),
        values(type, {kBlocks, kSize, kHeads, kDV}, 2, order),
        key(type, {int64_t(the_slots.size()), kHeads, kDK}, 3),
        value(type, {int64_t(the_slots.size()), kHeads, kDV}, 4),
        slots(DType::kI64, the_slots) {}
  int32_t Run() {
    return testing_kv::Launch(
        kernels::kernels_kv_append_paged_cpu[0],
        {keys.tensor(), values.tensor(), key.tensor(), value.tensor(), slots.tensor(), kAbsent, kAbsent},
        {kBlocks, kSize, kHeads, kDK, kDV, 0});
  }
  Array keys, values, key, value, slots;
};

void ExpectRows(DType type, const std::vector<size_t>& order) {
  const std::vector<int64_t> slots{5, -1, 0, 11};
  Append call(type, order, slots);
  const Append before = call;
  ASSERT_EQ(call.Run(), 0);
  for (int64_t slot = 0; slot < kBlocks * kSize; ++slot) {
    const int64_t row = std::find(slots.begin(), slots.end(), slot) - slots.begin();
    for (int64_t h = 0; h < kHeads; ++h) {
      const bool written = row < int64_t(slots.size());
      const int64_t block = slot / kSize, at = slot % kSize;
      EXPECT_EQ(call.keys.Row({block, at, h, 0}),
                written ? call.key.Row({row, h, 0}) : before.keys.Row({block, at, h, 0}));
      EXPECT_EQ(call.values.Row({block, at, h, 0}),
                written ? call.value.Row({row, h, 0}) : before.values.Row({block, at, h, 0}));
    }
  }
}

TEST(CpuKvAppendPaged, CopiesRowsOfEveryDTypeInBothOrders) {
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    ExpectRows(type, {});            // NHD: a row is one copy
    ExpectRows(type, {0, 2, 1, 3});  // HND: one copy for each head
  }
}

TEST(CpuKvAppendPaged, RefusesSlotsBeyondTheCacheAndWritesNothing) {
  for (int64_t slot : {kBlocks * kSize, int64_t{1} << 40, INT64_MAX}) {
    Append call(DType::kF32, {}, {0, slot, 1});
    const std::vector<char> before = call.keys.bytes();
    EXPECT_EQ(call.Run(), ops::kv::kSlotOutOfRange);
    EXPECT_EQ(call.keys.bytes(), before);
  }
}

}  // namespace
}  // namespace lz
