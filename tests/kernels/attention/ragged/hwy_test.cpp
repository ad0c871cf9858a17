// Packed SIMD attention against the dense kernel run on each sequence alone, which gives the same bits.
#include <cmath>
#include <limits>

#include "ops/attention/dense.h"
#include "ops/attention/ragged.h"
#include "tests/kernels/attention/harness.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_attention_dense_hwy;
extern const KernelFamily kernels_attention_ragged_hwy;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

struct Case {
  DType type = DType::kF32;
  std::vector<int64_t> q, kv;  // lengths
  int64_t rest = 0;            // tokens of no sequence
  int64_t h_q = 4, h_kv = 2, d_qk = 16, d_v = 24, window = -1;
  bool causal = true;
  int threads = 1;
};

struct Packed {
  Array q, k, v, cu_q, cu_kv, sinks, slopes, out, lse;
};

Packed Make(const Case& c) {
  std::mt19937 random(4);
  const auto offsets = [](const std::vector<int64_t>& lengths) {
    std::vector<int64_t> at = {0};
    for (int64_t n : lengths) at.push_back(at.back() + n);
    return at;
  };
  const std::vector<int64_t> cu_q = offsets(c.q), cu_kv = offsets(c.kv);
  const int64_t total_q = cu_q.back() + c.rest, total_kv = cu_kv.back() + c.rest;
  Packed x;
  x.q = Array(c.type, {total_q, c.h_q, c.d_qk}).Fill(random);
  x.k = Array(c.type, {total_kv, c.h_kv, c.d_qk}).Fill(random);
  x.v = Array(c.type, {total_kv, c.h_kv, c.d_v}).Fill(random);
  x.cu_q = Array(kInts, {int64_t(cu_q.size())}).Each([&](auto& i) { return double(cu_q[size_t(i[0])]); });
  x.cu_kv = Array(kInts, {int64_t(cu_kv.size())}).Each([&](auto& i) { return double(cu_kv[size_t(i[0])]); });
  x.sinks = Array(DType::kF32, {c.h_q}).Fill(random);
  x.slopes = Array(DType::kF32, {c.h_q}).Fill(random);
  x.out = Array(c.type, {total_q, c.h_q, c.d_v});
  x.lse = Array(DType::kF32, {total_q, c.h_q});
  return x;
}

int32_t RunRagged(const Case& c, Packed& x, int64_t longest = 1000) {
  using namespace lz::ops::attention_ragged;
  std::vector<lz_scalar> scalars(7, kAbsent);
  scalars[kCausal] = Whole(c.causal);
  scalars[kScale] = Real(0.25);
  if (c.window > 0) scalars[kWindow] = Whole(c.window);
  scalars[kMaxSeqlenQ] = scalars[kMaxSeqlenKV] = Whole(longest);
  const lz_tensor q = x.q.tensor(), k = x.k.tensor();
  return Call(kernels::kernels_attention_ragged_hwy, "hwy.attention.gqa.prefill.ragged",
              {&x.q, &x.k, &x.v, &x.cu_q, &x.cu_kv, &x.sinks, &x.slopes, &x.out, &x.lse}, scalars,
              {q.shape[0], c.h_q, c.d_qk, k.shape[0], c.h_kv, c.d_v, int64_t(c.q.size()) + 1}, c.threads);
}

Array Slice(const Case& c, Array& from, int64_t first, int64_t count, int64_t heads, int64_t d) {
  const View view = from.view();
  return Array(c.type, {1, count, heads, d}).Each([&](auto& i) { return view.Get({first + i[1], i[2], i[3]}); });
}

void Check(const Case& c) {
  Packed x = Make(c);
  ASSERT_EQ(RunRagged(c, x), 0);
  int64_t at_q = 0, at_kv = 0;
  for (size_t s = 0; s < c.q.size(); ++s) {
    using namespace lz::ops::attention_dense;
    Array q = Slice(c, x.q, at_q, c.q[s], c.h_q, c.d_qk), k = Slice(c, x.k, at_kv, c.kv[s], c.h_kv, c.d_qk);
    Array v = Slice(c, x.v, at_kv, c.kv[s], c.h_kv, c.d_v), out(c.type, {1, c.q[s], c.h_q, c.d_v}), none;
    Array lse(DType::kF32, {1, c.h_q, c.q[s]});
    std::vector<lz_scalar> scalars(6, kAbsent);
    scalars[kCausal] = Whole(c.causal);
    scalars[kScale] = Real(0.25);
    if (c.window > 0) scalars[kWindow] = Whole(c.window);
    ASSERT_EQ(Call(kernels::kernels_attention_dense_hwy, "hwy.attention.gqa.prefill",
                   {&q, &k, &v, &none, &x.sinks, &x.slopes, &out, &lse}, scalars,
                   {1, c.q[s], c.h_q, c.d_qk, c.kv[s], c.h_kv, c.d_v}, 1),
              0);
    for (int64_t i = 0; i < c.q[s]; ++i) {
      for (int64_t h = 0; h < c.h_q; ++h) {
        ASSERT_EQ(x.lse.view().Get({at_q + i, h}), lse.view().Get({0, h, i}));
        for (int64_t d = 0; d < c.d_v; ++d) {
          ASSERT_EQ(x.out.view().Get({at_q + i, h, d}), out.view().Get({0, i, h, d})) << s << " " << i << " " << h;
        }
      }
    }
    at_q += c.q[s];
    at_kv += c.kv[s];
  }
  for (int64_t i = 0; i < c.rest; ++i) {
    EXPECT_EQ(x.lse.view().Get({at_q + i, 1}), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(x.out.view().Get({at_q + i, 1, 2}), 0);
  }
}

TEST(RaggedAttention, EqualsTheDenseKernelPerSequence) {
  for (DType type : testing_call::kTestTypes) {
    for (int threads : {1, 3}) {
      Check({.type = type, .q = {5, 0, 33, 1}, .kv = {5, 3, 70, 90}, .rest = 2, .threads = threads});
      Check(
          {.type = type, .q = {1, 1, 1, 1, 1, 1, 1}, .kv = {5, 3, 70, 90, 1, 300, 0}, .window = 9, .threads = threads});
      Check({.type = type, .q = {1, 1}, .kv = {300, 40}, .h_q = 16, .h_kv = 16, .threads = threads});
      Check({.type = type, .q = {80}, .kv = {80}, .causal = false, .threads = threads});
      Check({.type = type, .q = {}, .kv = {}, .rest = 3, .threads = threads});
    }
  }
}

TEST(RaggedAttention, RefusesInvalidOffsets) {
  const Case c = {.q = {5, 6}, .kv = {5, 6}};
  Packed x = Make(c);
  EXPECT_EQ(RunRagged(c, x, 5), 1);
  x.cu_q.view().SetInt({0}, 1);
  EXPECT_EQ(RunRagged(c, x), 1);
  x = Make(c);
  x.cu_kv.view().SetInt({1}, 12);
  EXPECT_EQ(RunRagged(c, x), 1);
  x = Make(c);
  x.cu_kv.view().SetInt({2}, 12);
  EXPECT_EQ(RunRagged(c, x), 1);
}

}  // namespace
}  // namespace lz::testing
