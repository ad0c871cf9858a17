// embedding.lookup, emulated: rows whose threads copy several units.
#include <gtest/gtest.h>

#include "ops/embedding/lookup.h"
#include "tests/kernels/sampling/sampling_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_embedding_lookup_cuda;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;

TEST(EmulatedLookup, CopiesManyLongRows) {
  constexpr int64_t kRows = 131, kVocab = 37;
  for (const int64_t hidden : {4104, 4101}) {  // units of 16 bytes, and of one element
    Owned ids(DType::kI32, {kRows}), table(DType::kF32, {kVocab, hidden}), out(DType::kF32, {kRows, hidden});
    float* const values = reinterpret_cast<float*>(table.bytes.data());
    for (int64_t i = 0; i < kVocab * hidden; ++i) values[i] = float(i);
    for (int64_t r = 0; r < kRows; ++r) ids.view().StoreInt(r, r * 5 % kVocab);
    Call call({&ids, &table, &out}, {});
    ASSERT_EQ(call.Run(kernels::kernels_embedding_lookup_cuda[0]), 0);
    const float* const got = reinterpret_cast<const float*>(out.bytes.data());
    for (int64_t i = 0; i < kRows * hidden; ++i) {
      ASSERT_EQ(got[i], float(i / hidden * 5 % kVocab * hidden + i % hidden)) << i << " of " << hidden;
    }
  }
}

}  // namespace
}  // namespace lz
