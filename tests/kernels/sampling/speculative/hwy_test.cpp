// hwy.sampling.speculative: equal to the FP64 reference, and its tokens follow the target's distribution exactly.
#include <gtest/gtest.h>

#include <limits>

#include "ops/common/sampling_check.h"
#include "ops/sampling/speculative.h"
#include "tests/kernels/sampling/sampling_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_sampling_speculative_hwy, ops_sampling_speculative_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;
using ops::sampling_speculative::kContract;

const KernelSpec& Kernel() { return kernels::kernels_sampling_speculative_hwy[0]; }
const KernelSpec& Reference() { return kernels::ops_sampling_speculative_ref[0]; }

std::vector<double> RandomProbs(std::mt19937& random, int64_t rows, int64_t vocab, double spread) {
  std::normal_distribution<double> normal;
  std::vector<double> values;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += values.emplace_back(std::exp(spread * normal(random)));
    for (int64_t i = 0; i < vocab; ++i) values[size_t(r * vocab + i)] /= sum;
  }
  return values;
}

struct Chain {
  Chain(DType type, DType id_type, int64_t b, int64_t n, int64_t vocab)
      : draft(type, {b, n, vocab}),
        ids(id_type, {b, n}),
        target(type, {b, n + 1, vocab}),
        out(DType::kI64, {b, n + 1}),
        accepted(DType::kI64, {b}) {}
  Call MakeCall(int64_t seed, int64_t offset) const {
    return Call({&draft, &ids, &target, nullptr, &out, &accepted}, {I(seed), I(offset)});
  }
  Owned draft, ids, target, out, accepted;
};

TEST(Speculative, AgreesWithFp64) {
  std::mt19937 random(5);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const DType id_type : {DType::kI32, DType::kI64}) {
      for (const int64_t vocab : {1, 7, 100, 3001}) {
        for (const int64_t n : {0, 1, 4}) {
          Chain chain(type, id_type, 33, n, vocab);
          chain.draft.Fill(RandomProbs(random, std::max<int64_t>(33 * n, 1), vocab, 1.0));
          chain.target.Fill(RandomProbs(random, 33 * (n + 1), vocab, 1.0));
          for (int64_t i = 0; i < 33 * n; ++i) chain.ids.view().StoreInt(i, int64_t(random() % uint64_t(vocab)));
          Call call = chain.MakeCall(21, 2);
          ASSERT_EQ(call.Run(Reference()), 0);
          const std::vector<char> expected = chain.out.bytes, expected_count = chain.accepted.bytes;
          ASSERT_EQ(call.Run(Kernel()), 0);
          for (int64_t r = 0; r < 33; ++r) {
            EXPECT_TRUE(sampling::RowAgrees(kContract, call.args, r, kContract.tolerance.f32)) << r;
          }
          EXPECT_EQ(chain.out.bytes, expected) << "vocab " << vocab << " n " << n;
          EXPECT_EQ(chain.accepted.bytes, expected_count);
        }
      }
    }
  }
}

// Drafts drawn from q, verified against p: the first token is distributed as p[0], and the second as p[1] whenever the
// first draft was accepted, whatever q is.
void ExpectExact(DType type) {
  constexpr int64_t kVocab = 12, kRows = 60000;
  std::mt19937 random(17);
  Chain chain(type, DType::kI64, kRows, 2, kVocab);
  const std::vector<double> q = RandomProbs(random, 2, kVocab, 1.0), p = RandomProbs(random, 3, kVocab, 1.0);
  chain.draft.Fill(q);
  chain.target.Fill(p);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < 2; ++i) {
      std::vector<double> row(kVocab);
      for (int64_t v = 0; v < kVocab; ++v) row[v] = chain.draft.view().Get({r, i, v});
      chain.ids.view().SetInt({r, i}, sampling::DrawFrom(row, PhiloxUniform(99, i, r, 0)));
    }
  }
  Call call = chain.MakeCall(99, 2);
  ASSERT_EQ(call.Run(Kernel()), 0);
  std::vector<std::vector<int64_t>> counts(3, std::vector<int64_t>(kVocab));
  double accepted = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t count = chain.accepted.view().GetInt({r});
    accepted += double(count);
    for (int64_t i = 0; i <= count; ++i) ++counts[i][chain.out.view().GetInt({r, i})];
    for (int64_t i = count + 1; i < 3; ++i) ASSERT_EQ(chain.out.view().GetInt({r, i}), -1);
  }
  EXPECT_GT(accepted, 0.5 * kRows);
  EXPECT_LT(accepted, 1.9 * kRows);
  for (int64_t i = 0; i < 3; ++i) {
    std::vector<double> expected(kVocab);
    double sum = 0;
    for (int64_t v = 0; v < kVocab; ++v) sum += expected[v] = chain.target.view().Get({0, i, v});
    for (double& e : expected) e /= sum;
    EXPECT_LT(ChiSquareSigmas(counts[i], expected), 4) << "position " << i;
  }
}
TEST(Speculative, TokensFollowTheTargetF32) { ExpectExact(DType::kF32); }

TEST(Speculative, EqualDistributionsAcceptEverything) {
  std::mt19937 random(1);
  Chain chain(DType::kF32, DType::kI64, 200, 3, 50);
  const std::vector<double> p = RandomProbs(random, 1, 50, 2.0);
  chain.draft.Fill(p);
  chain.target.Fill(p);
  for (int64_t i = 0; i < 600; ++i) chain.ids.view().StoreInt(i, int64_t(random() % 50));
  Call call = chain.MakeCall(1, 0);
  ASSERT_EQ(call.Run(Kernel()), 0);
  for (int64_t r = 0; r < 200; ++r) EXPECT_EQ(chain.accepted.view().GetInt({r}), 3);
}

TEST(Speculative, UndecidedPositionsEndTheRowWithMinusOne) {
  for (const KernelSpec* kernel : {&Kernel(), &Reference()}) {
    Chain chain(DType::kF32, DType::kI32, 5, 2, 4);
    chain.draft.Fill({0.25, 0.25, 0.25, 0.25});
    chain.target.Fill({0.0, 0.5, 0.25, 0.25});
    for (int64_t i = 0; i < 10; ++i) chain.ids.view().StoreInt(i, 1);  // accepted: p = 0.5 > u q
    chain.ids.view().SetInt({0, 0}, 4);                                // outside
    chain.ids.view().SetInt({1, 1}, -1);                               // outside, after one accepted
    chain.target.view().Set({2, 0, 1}, std::numeric_limits<double>::quiet_NaN());
    for (int64_t v = 0; v < 4; ++v) chain.target.view().Set({3, 2, v}, 0);  // the bonus row has no mass
    chain.ids.view().SetInt({4, 0}, 0);                                     // p = 0: rejected
    chain.target.view().Set({4, 0, 3}, std::numeric_limits<double>::quiet_NaN());
    Call call = chain.MakeCall(1, 0);
    ASSERT_EQ(call.Run(*kernel), 0);
    const std::vector<std::vector<int64_t>> expected = {
        {-1, -1, -1}, {1, -1, -1}, {-1, -1, -1}, {1, 1, -1}, {-1, -1, -1}};
    const std::vector<int64_t> counts = {0, 1, 0, 2, 0};
    for (int64_t r = 0; r < 5; ++r) {
      EXPECT_EQ(chain.accepted.view().GetInt({r}), counts[r]) << kernel->id << r;
      for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(chain.out.view().GetInt({r, i}), expected[r][i]) << kernel->id << r;
      EXPECT_TRUE(sampling::RowAgrees(kContract, call.args, r, 1e-5)) << kernel->id << r;
    }
    call.args.flags = LZ_KERNEL_STRICT;
    EXPECT_EQ(call.Run(*kernel), LZ_LAUNCH_INVALID_DATA) << kernel->id;
  }
}

TEST(Speculative, CheckRejectsWrongTokens) {
  std::mt19937 random(8);
  Chain chain(DType::kF32, DType::kI64, 1, 2, 50);
  chain.draft.Fill(RandomProbs(random, 2, 50, 1.0));
  chain.target.Fill(RandomProbs(random, 3, 50, 1.0));
  Call call = chain.MakeCall(4, 0);
  ASSERT_EQ(call.Run(Kernel()), 0);
  ASSERT_TRUE(sampling::RowAgrees(kContract, call.args, 0, 1e-5));
  const int64_t count = chain.accepted.view().GetInt({0}), token = chain.out.view().GetInt({0, count});
  chain.out.view().SetInt({0, count}, (token + 25) % 50);
  EXPECT_FALSE(sampling::RowAgrees(kContract, call.args, 0, 1e-5));
  chain.out.view().SetInt({0, count}, token);
  chain.accepted.view().SetInt({0}, (count + 1) % 3);
  EXPECT_FALSE(sampling::RowAgrees(kContract, call.args, 0, 1e-5));
}

}  // namespace
}  // namespace lz
