// The attention references against each other: storage forms against dense, split keys merged against the whole, sinks
// against an extra key; and invalid index data, which must fail and write nothing.
#include <gtest/gtest.h>

#include "ops/attention/block_table.h"
#include "ops/attention/dense.h"
#include "ops/attention/merge.h"
#include "ops/attention/mla_decode_paged.h"
#include "ops/attention/paged.h"
#include "ops/attention/ragged.h"
#include "ops/attention/sparse_block.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily ops_attention_block_table_ref, ops_attention_dense_ref, ops_attention_merge_ref,
    ops_attention_mla_decode_paged_ref, ops_attention_paged_ref, ops_attention_ragged_ref,
    ops_attention_sparse_block_ref;
}

namespace lz {
namespace {
using namespace testing_call;
using Values = std::vector<double>;

constexpr lz_scalar kNone = {.value = {.i = -1}, .given = 0};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Array Normal(std::vector<int64_t> shape, uint32_t seed) {
  Array a(DType::kF64, std::move(shape));
  a.FillNormal(seed);
  return a;
}
Array Ints(std::vector<int64_t> shape, const Values& values) {
  Array a(DType::kI32, std::move(shape));
  a.Set(values);
  return a;
}
Values Part(const Values& all, int64_t begin, int64_t end) { return {all.begin() + begin, all.begin() + end}; }

struct Result {
  Values output, lse;
};

// query (1, s_q, h_q, d), key and value (1, s_kv, h_kv, d).
Result Dense(Array& q, Array& k, Array& v, Array* sinks = nullptr, bool causal = false) {
  const auto shape = q.tensor().shape;
  Array out(DType::kF64, {shape[0], shape[1], shape[2], v.tensor().shape[3]});
  Array lse(DType::kF32, {shape[0], shape[2], shape[1]});
  EXPECT_EQ(Launch(kernels::ops_attention_dense_ref[0], {&q, &k, &v, nullptr, sinks, nullptr, &out, &lse},
                   {Scalar(causal), Scalar(0.25), Scalar(0.0), kNone, kNone, Scalar(true)}),
            0);
  return {out.Values(), lse.Values()};
}

constexpr int64_t kH = 4, kHKV = 2, kD = 8, kKeys = 11, kPageSize = 4;

// Pages 2, 0, 3 of a pool of 5 hold the dense keys; every other slot is NaN.
Array Pool(const Values& dense) {
  Array pool(DType::kF64, {5, kPageSize, kHKV, kD});
  Values all(size_t(pool.numel()), std::nan(""));
  constexpr std::array<int64_t, 3> kPages = {2, 0, 3};
  const int64_t entry = kHKV * kD;
  for (int64_t j = 0; j < kKeys; ++j) {
    const int64_t slot = kPages[size_t(j / kPageSize)] * kPageSize + j % kPageSize;
    for (int64_t i = 0; i < entry; ++i) all[size_t(slot * entry + i)] = dense[size_t(j * entry + i)];
  }
  pool.Set(all);
  return pool;
}

class AttentionReference : public ::testing::Test {
 protected:
  Array q_ = Normal({1, 1, kH, kD}, 1), k_ = Normal({1, kKeys, kHKV, kD}, 2), v_ = Normal({1, kKeys, kHKV, kD}, 3);
  Array k_pool_ = Pool(k_.Values()), v_pool_ = Pool(v_.Values());
  Array sinks_ = Normal({kH}, 4), out_{DType::kF64, {1, kH, kD}}, lse_{DType::kF32, {1, kH}};

  int32_t Paged(const Values& indptr, const Values& pages, const Values& last, int64_t window_left = -1) {
    Array ptr = Ints({2}, indptr), indices = Ints({int64_t(pages.size())}, pages), len = Ints({1}, last);
    return Launch(kernels::ops_attention_paged_ref[0],
                  {&q3_, &k_pool_, &v_pool_, &ptr, &indices, &len, &sinks_, nullptr, nullptr, nullptr, &out_, &lse_},
                  {Scalar(0.25), Scalar(window_left), kNone, Scalar(true)});
  }
  int32_t BlockTable(const Values& table, double length) {
    Array tables = Ints({1, int64_t(table.size())}, table), lens = Ints({1}, {length});
    return Launch(kernels::ops_attention_block_table_ref[0],
                  {&q_, &k_pool_, &v_pool_, &tables, &lens, &sinks_, nullptr, nullptr, nullptr, &out4_, &lse_},
                  {Scalar(0.25), kNone, kNone, Scalar(true)});
  }
  static bool Untouched(const Array& a) {
    const std::vector<char> bytes = a.bytes();
    return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == '\xAA'; });
  }

  Array q3_ = [this] {
    Array q(DType::kF64, {1, kH, kD});
    q.Set(q_.Values());
    return q;
  }();
  Array out4_{DType::kF64, {1, 1, kH, kD}};
};

TEST_F(AttentionReference, PagedFormsEqualDense) {
  const Result want = Dense(q_, k_, v_, &sinks_);
  ASSERT_EQ(Paged({0, 3}, {2, 0, 3}, {3}), 0);
  ExpectClose(out_.Values(), want.output, 1e-14);
  ExpectClose(lse_.Values(), want.lse, 0);
  ASSERT_EQ(BlockTable({2, 0, 3, -1}, kKeys), 0);
  ExpectClose(out4_.Values(), want.output, 1e-14);
}

TEST_F(AttentionReference, InvalidPagesFailAndWriteNothing) {
  EXPECT_EQ(Paged({0, 3}, {2, 5, 3}, {3}), 1) << "page beyond the pool";
  EXPECT_EQ(Paged({0, 3}, {2, -1, 3}, {3}), 1);
  EXPECT_EQ(Paged({0, 3}, {2, 0, 3}, {5}), 1) << "more entries than a page has";
  EXPECT_EQ(Paged({0, 3}, {2, 0, 3}, {-1}), 1);
  EXPECT_EQ(Paged({0, 4}, {2, 0, 3}, {3}), 1) << "more pages than listed";
  EXPECT_EQ(Paged({1, 3}, {2, 0, 3}, {3}), 1) << "does not start at 0";
  EXPECT_EQ(Paged({0, -1}, {2, 0, 3}, {3}), 1);
  EXPECT_EQ(BlockTable({2, 0, 5}, kKeys), 1);
  EXPECT_EQ(BlockTable({2, 0, 3}, 13), 1) << "longer than the table";
  EXPECT_EQ(BlockTable({2, 0, 3}, -1), 1);
  EXPECT_TRUE(Untouched(out_));
  EXPECT_TRUE(Untouched(out4_));
  EXPECT_TRUE(Untouched(lse_));
  EXPECT_EQ(Paged({0, 3}, {-9, 99, 3}, {3}, 1), 0) << "pages before the window are not looked at";
}

TEST_F(AttentionReference, SplitKeysMergeToTheWhole) {
  const int64_t entry = kHKV * kD;
  const Result want = Dense(q_, k_, v_, &sinks_);
  for (const int64_t cut : {0, 1, 5, 10, 11}) {
    SCOPED_TRACE(cut);
    std::array<Array, 2> o = {Array(DType::kF64, {1, kH, kD}), Array(DType::kF64, {1, kH, kD})};
    std::array<Array, 2> s = {Array(DType::kF32, {1, kH}), Array(DType::kF32, {1, kH})};
    for (int part = 0; part < 2; ++part) {
      const int64_t begin = part ? cut : 0, end = part ? kKeys : cut;
      Array k(DType::kF64, {1, end - begin, kHKV, kD}), v(DType::kF64, {1, end - begin, kHKV, kD});
      k.Set(Part(k_.Values(), begin * entry, end * entry));
      v.Set(Part(v_.Values(), begin * entry, end * entry));
      const Result r = Dense(q_, k, v);
      o[size_t(part)].Set(r.output);
      s[size_t(part)].Set(r.lse);
    }
    ASSERT_EQ(Launch(kernels::ops_attention_merge_ref[0], {&o[0], &s[0], &o[1], &s[1], &sinks_, &out_, &lse_}, {}), 0);
    ExpectClose(out_.Values(), want.output, 1e-6);  // the parts' lse are f32
    ExpectClose(lse_.Values(), want.lse, 1e-6);
  }
}

TEST_F(AttentionReference, SinkIsAKeyWithoutAValue) {
  // One more key: its logit is the sink's only if q . k = sink / scale, so use one head and a key along q.
  Array q = Normal({1, 1, 1, kD}, 7), k = Normal({1, 4, 1, kD}, 8), v = Normal({1, 4, 1, kD}, 9);
  Array sink(DType::kF64, {1});
  sink.Set({1.5});
  const Result want = Dense(q, k, v, &sink);
  const Values qv = q.Values();
  double square = 0;
  for (const double x : qv) square += x * x;
  Values keys = k.Values(), values = v.Values();
  for (const double x : qv) keys.push_back(x / square * 1.5 / 0.25);
  values.resize(keys.size(), 0.0);
  Array k5(DType::kF64, {1, 5, 1, kD}), v5(DType::kF64, {1, 5, 1, kD});
  k5.Set(keys);
  v5.Set(values);
  ExpectClose(Dense(q, k5, v5).output, want.output, 1e-14);
  EXPECT_LT(want.lse[0], Dense(q, k5, v5).lse[0]) << "the lse leaves the sink out";
  EXPECT_EQ(want.lse, Dense(q, k, v).lse);
}

TEST_F(AttentionReference, RaggedEqualsDenseAndChecksItsOffsets) {
  Array q = Normal({7, kH, kD}, 5), k = Normal({kKeys, kHKV, kD}, 2), v = Normal({kKeys, kHKV, kD}, 3);
  Array out(DType::kF64, {7, kH, kD}), lse(DType::kF32, {7, kH});
  const auto run = [&](const Values& cu_q, const Values& cu_kv, lz_scalar max_q = kNone) {
    Array a = Ints({int64_t(cu_q.size())}, cu_q), b = Ints({int64_t(cu_kv.size())}, cu_kv);
    return Launch(kernels::ops_attention_ragged_ref[0], {&q, &k, &v, &a, &b, nullptr, nullptr, &out, &lse},
                  {Scalar(true), Scalar(0.25), kNone, kNone, max_q, kNone, Scalar(true)});
  };
  EXPECT_EQ(run({1, 7}, {0, 11}), 1);
  EXPECT_EQ(run({0, 8}, {0, 11}), 1);
  EXPECT_EQ(run({0, 7}, {0, 12}), 1);
  EXPECT_EQ(run({0, 5, 4}, {0, 3, 11}), 1);
  EXPECT_EQ(run({0, 2, 6}, {0, 3, 11}, Scalar(int64_t{3})), 1) << "a sequence longer than max_seqlen_q";
  EXPECT_TRUE(Untouched(out));
  EXPECT_TRUE(Untouched(lse));

  ASSERT_EQ(run({0, 2, 6}, {0, 3, 11}, Scalar(int64_t{4})), 0);
  Array q1(DType::kF64, {1, 4, kH, kD}), k1(DType::kF64, {1, 8, kHKV, kD}), v1(DType::kF64, {1, 8, kHKV, kD});
  q1.Set(Part(q.Values(), 2 * kH * kD, 6 * kH * kD));
  k1.Set(Part(k.Values(), 3 * kHKV * kD, 11 * kHKV * kD));
  v1.Set(Part(v.Values(), 3 * kHKV * kD, 11 * kHKV * kD));
  ExpectClose(Part(out.Values(), 2 * kH * kD, 6 * kH * kD), Dense(q1, k1, v1, nullptr, true).output, 1e-14);
  EXPECT_EQ(Part(out.Values(), 6 * kH * kD, 7 * kH * kD), Values(size_t(kH * kD), 0.0)) << "a row of no sequence";
  EXPECT_EQ(Part(lse.Values(), 6 * kH, 7 * kH), Values(size_t(kH), -kInfinity));
}

TEST_F(AttentionReference, MlaEqualsDenseOverJoinedKeys) {
  constexpr int64_t kCkv = 6, kPe = 3, kLength = 7;
  Array qn = Normal({1, kH, kCkv}, 1), qp = Normal({1, kH, kPe}, 2), ckv = Normal({3, kPageSize, kCkv}, 3);
  Array kpe = Normal({3, kPageSize, kPe}, 4), out(DType::kF64, {1, kH, kCkv}), lse(DType::kF32, {1, kH});
  const auto run = [&](const Values& pages, double last) {
    Array ptr = Ints({2}, {0, 2}), indices = Ints({2}, pages), len = Ints({1}, {last});
    return Launch(kernels::ops_attention_mla_decode_paged_ref[0],
                  {&qn, &qp, &ckv, &kpe, &ptr, &indices, &len, &out, &lse}, {Scalar(0.25), Scalar(true)});
  };
  EXPECT_EQ(run({1, 3}, 3), 1);
  EXPECT_EQ(run({1, 2}, 5), 1);
  EXPECT_TRUE(Untouched(out));
  ASSERT_EQ(run({1, 2}, 3), 0);
  Array q(DType::kF64, {1, 1, kH, kCkv + kPe}), k(DType::kF64, {1, kLength, 1, kCkv + kPe});
  Array v(DType::kF64, {1, kLength, 1, kCkv});
  const auto join = [](const Values& a, int64_t n, const Values& b, int64_t m, int64_t first, int64_t rows) {
    Values all;
    for (int64_t r = first; r < first + rows; ++r) {
      all.insert(all.end(), a.begin() + r * n, a.begin() + (r + 1) * n);
      all.insert(all.end(), b.begin() + r * m, b.begin() + (r + 1) * m);
    }
    return all;
  };
  q.Set(join(qn.Values(), kCkv, qp.Values(), kPe, 0, kH));
  k.Set(join(ckv.Values(), kCkv, kpe.Values(), kPe, kPageSize, kLength));
  v.Set(Part(ckv.Values(), kPageSize * kCkv, (kPageSize + kLength) * kCkv));
  const Result want = Dense(q, k, v);
  ExpectClose(out.Values(), want.output, 1e-14);
  ExpectClose(lse.Values(), want.lse, 0);
}

TEST_F(AttentionReference, FullBlockListEqualsDense) {
  Array q = Normal({4, kH, kD}, 5), k = Normal({6, kHKV, kD}, 2), v = Normal({6, kHKV, kD}, 3);
  Array out(DType::kF64, {4, kH, kD}), lse(DType::kF32, {4, kH});
  const auto run = [&](const Values& indptr, const Values& blocks) {
    Array ptr = Ints({3}, indptr), indices = Ints({int64_t(blocks.size())}, blocks);
    return Launch(kernels::ops_attention_sparse_block_ref[0], {&q, &k, &v, &ptr, &indices, &out, &lse},
                  {Scalar(int64_t{2}), Scalar(int64_t{3}), Scalar(0.25), Scalar(true)});
  };
  EXPECT_EQ(run({0, 1, 2}, {0, 2}), 1) << "block beyond the keys";
  EXPECT_EQ(run({0, 2, 1}, {0, 1}), 1);
  EXPECT_EQ(run({0, 1, 3}, {0, 1}), 1);
  EXPECT_TRUE(Untouched(out));
  ASSERT_EQ(run({0, 2, 4}, {1, 0, 0, 1}), 0);
  Array q1(DType::kF64, {1, 4, kH, kD}), k1(DType::kF64, {1, 6, kHKV, kD}), v1(DType::kF64, {1, 6, kHKV, kD});
  q1.Set(q.Values());
  k1.Set(k.Values());
  v1.Set(v.Values());
  ExpectClose(out.Values(), Dense(q1, k1, v1).output, 1e-14);
}

// What canonicalize makes of the arguments of one dense call.
Status Canonical(std::array<lz_scalar, 6>& scalars, bool masked, int64_t h_q = 4, int64_t h_kv = 2, int64_t d = 16) {
  std::array<lz_tensor, 8> tensors = {};
  for (lz_tensor& t : tensors) t.ndim = -1;
  if (masked) tensors[ops::attention_dense::kAttnMask].ndim = 2;
  const std::array<int64_t, 7> axes = {1, 3, h_q, d, 5, h_kv, d};
  BoundArgs args = {tensors.data(), scalars.data(), axes.data()};
  return ops::attention_dense::Canonicalize(args);
}

TEST(AttentionContract, FillsDefaultsAndRefusesWhatHasNoMeaning) {
  using ops::attention_dense::kCausal, ops::attention_dense::kDropoutP, ops::attention_dense::kScale;
  using ops::attention_dense::kSoftcap, ops::attention_dense::kWindow;
  const std::array<lz_scalar, 6> unset = {};
  auto s = unset;
  ASSERT_TRUE(Canonical(s, false).ok());
  EXPECT_EQ(s[kCausal].value.i, 1) << "without a mask";
  EXPECT_EQ(s[kScale].value.f, 0.25);
  EXPECT_EQ(s[kWindow].given, 0u);
  EXPECT_EQ(s[kWindow].value.i, -1);
  s = unset;
  ASSERT_TRUE(Canonical(s, true).ok());
  EXPECT_EQ(s[kCausal].value.i, 0) << "with a mask";
  s = unset;
  s[kCausal] = Scalar(true);
  EXPECT_EQ(Canonical(s, true).parts().field, "attn_mask");
  s = unset;
  EXPECT_EQ(Canonical(s, false, 5, 2).parts().field, "key");
  s = unset;
  EXPECT_EQ(Canonical(s, false, 5, 0).parts().field, "key");
  s = unset;
  s[kScale] = Scalar(kInfinity);
  EXPECT_EQ(Canonical(s, false).parts().field, "scale");
  s = unset;
  s[kDropoutP] = Scalar(1.0);
  EXPECT_EQ(Canonical(s, false).parts().field, "dropout_p");
  s = unset;
  s[kWindow] = Scalar(int64_t{0});
  EXPECT_EQ(Canonical(s, false).parts().field, "window");
  s = unset;
  s[kSoftcap] = Scalar(0.0);
  ASSERT_TRUE(Canonical(s, false).ok());
  EXPECT_EQ(s[kSoftcap].given, 0u) << "0 is no cap";
  s[kSoftcap] = Scalar(-1.0);
  EXPECT_EQ(Canonical(s, false).parts().field, "softcap");
}

}  // namespace
}  // namespace lz
