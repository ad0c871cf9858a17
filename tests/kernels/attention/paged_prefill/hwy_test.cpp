// hwy.attention.{standard,gqa}.prefill.paged against the FP64 reference: sequences of unlike length, any number of
// threads.
#include "ops/attention/paged_prefill.h"

#include "tests/kernels/attention/paged_case.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_attention_paged_prefill_hwy, ops_attention_paged_prefill_ref;
}

namespace lz::testing {
namespace {
using namespace lz::ops::attention_paged_prefill;

struct Case {
  DType type = DType::kF32;
  std::vector<int64_t> queries, keys;
  int64_t page_size = 16, window_left = -1;
  bool causal = true, slopes = false;
  int64_t heads = 4, kv_heads = 2;
};

void RunBoth(const Case& c) {
  constexpr int64_t kDim = 24;
  std::mt19937 random(11);
  PagedCache cache = MakePagedCache(c.type, c.keys, c.page_size, c.kv_heads, kDim, random);
  const int64_t batch = int64_t(c.queries.size());
  Array rows = Array(kInts, {batch + 1}).Each([](auto&) { return 0; });
  int64_t total = 0;
  for (int64_t s = 0; s < batch; ++s) rows.view().SetInt({s + 1}, total += c.queries[size_t(s)]);
  total += 2;  // rows of no sequence
  Array q = Array(c.type, {total, c.heads, kDim}).Fill(random), slopes, absent;
  if (c.slopes) slopes = Array(DType::kF32, {c.heads}).Fill(random, 0.1);
  std::vector<lz_scalar> scalars = {Real(0.2), Whole(c.causal), Whole(c.window_left), kAbsent, Whole(1)};
  const std::vector<int64_t> axes = {
      total, c.heads, kDim, cache.k.view().size(0), c.page_size, c.kv_heads, kDim, cache.indices.view().size(0), batch};
  const auto run = [&](KernelFamily family, std::string_view id, DType type, int threads) {
    Array out(type, {total, c.heads, kDim}), lse(DType::kF32, {total, c.heads});
    EXPECT_EQ(Call(family, id,
                   {&q, &cache.k, &cache.v, &rows, &cache.indptr, &cache.indices, &cache.last, &absent, &slopes,
                    &absent, &absent, &out, &lse},
                   scalars, axes, threads),
              0);
    return std::pair(std::move(out), std::move(lse));
  };
  auto [want, want_lse] =
      run(kernels::ops_attention_paged_prefill_ref, "ref.attention.gqa.prefill.paged", DType::kF64, 1);
  for (int threads : {1, 3}) {
    SCOPED_TRACE(threads);
    auto [got, got_lse] =
        run(kernels::kernels_attention_paged_prefill_hwy, "hwy.attention.gqa.prefill.paged", c.type, threads);
    ExpectNear(got, want, testing_call::ToleranceOf(kContract.tolerance, c.type));
    ExpectNear(got_lse, want_lse, 1e-5);
  }
}

TEST(HwyPagedPrefill, AgreesWithTheReference) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t page_size : {1, 3, 16, 128}) {
      SCOPED_TRACE(page_size);
      RunBoth({.type = type, .queries = {5, 0, 1, 70, 3}, .keys = {5, 9, 130, 200, 0}, .page_size = page_size});
    }
    RunBoth({.type = type, .queries = {1, 1}, .keys = {600, 700}, .heads = 16, .kv_heads = 16});
    RunBoth({.type = type, .queries = {9, 33}, .keys = {4, 150}, .window_left = 6});
    RunBoth({.type = type, .queries = {9, 33}, .keys = {40, 150}, .window_left = 0, .causal = false});
    RunBoth({.type = type, .queries = {9, 33}, .keys = {40, 150}, .causal = false, .slopes = true});
  }
}

TEST(HwyPagedPrefill, EmptyBatch) { RunBoth({.queries = {}, .keys = {}}); }

}  // namespace
}  // namespace lz::testing
