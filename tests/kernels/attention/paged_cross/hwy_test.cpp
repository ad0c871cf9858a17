// hwy.attention.cross.*.paged against the FP64 reference: sequences of unlike length, any number of threads.
#include "ops/attention/paged_cross.h"

#include "tests/kernels/attention/paged_case.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_attention_paged_cross_hwy, ops_attention_paged_cross_ref;
}

namespace lz::testing {
namespace {
using namespace lz::ops::attention_paged_cross;

void RunBoth(DType type, int64_t s_q, int64_t page_size) {
  constexpr int64_t kHeads = 6, kKVHeads = 2, kDim = 24;
  const std::vector<int64_t> keys = {5, 0, 130, 700};
  const int64_t batch = int64_t(keys.size());
  std::mt19937 random(13);
  PagedCache cache = MakePagedCache(type, keys, page_size, kKVHeads, kDim, random);
  Array q = Array(type, {batch, s_q, kHeads, kDim}).Fill(random), absent;
  const std::vector<lz_scalar> scalars = {Real(0.2), Real(4), Whole(1)};
  const std::vector<int64_t> axes = {
      batch, s_q, kHeads, kDim, cache.k.view().size(0), page_size, kKVHeads, kDim, cache.indices.view().size(0)};
  const auto run = [&](KernelFamily family, std::string_view id, DType out_type, int threads) {
    Array out(out_type, {batch, s_q, kHeads, kDim}), lse(DType::kF32, {batch, kHeads, s_q});
    EXPECT_EQ(Call(family, id,
                   {&q, &cache.k, &cache.v, &cache.indptr, &cache.indices, &cache.last, &absent, &absent, &absent, &out,
                    &lse},
                   scalars, axes, threads),
              0);
    return std::pair(std::move(out), std::move(lse));
  };
  auto [want, want_lse] =
      run(kernels::ops_attention_paged_cross_ref, "ref.attention.cross.prefill.paged", DType::kF64, 1);
  for (int threads : {1, 3}) {
    SCOPED_TRACE(threads);
    auto [got, got_lse] =
        run(kernels::kernels_attention_paged_cross_hwy, "hwy.attention.cross.prefill.paged", type, threads);
    ExpectNear(got, want, testing_call::ToleranceOf(kContract.tolerance, type));
    ExpectNear(got_lse, want_lse, 1e-5);
  }
}

TEST(HwyPagedCross, AgreesWithTheReference) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t s_q : {1, 4, 40}) {
      for (const int64_t page_size : {1, 7, 64}) {
        SCOPED_TRACE(std::to_string(s_q) + " queries, pages of " + std::to_string(page_size));
        RunBoth(type, s_q, page_size);
      }
    }
  }
}

}  // namespace
}  // namespace lz::testing
