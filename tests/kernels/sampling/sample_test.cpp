// The sample_* kernels against FP64 on rows that are hard for a selection, degenerate rows, and the drawn distribution.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "hwy/targets.h"
#include "ops/common/sampling_check.h"
#include "ops/sampling/minp.h"
#include "ops/sampling/topk.h"
#include "ops/sampling/topk_topp.h"
#include "ops/sampling/topp.h"
#include "tests/kernels/sampling/sampling_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_sampling_topk_hwy, kernels_sampling_topp_hwy, kernels_sampling_minp_hwy,
    kernels_sampling_topk_topp_hwy;
extern const KernelFamily ops_sampling_topk_ref, ops_sampling_topp_ref, ops_sampling_minp_ref,
    ops_sampling_topk_topp_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;

constexpr double kHuge = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Operation {
  const Contract* contract;
  const KernelSpec* kernel;
  const KernelSpec* reference;
  std::vector<lz_scalar> filters;  // the scalars before temperature, seed and offset
};

std::vector<Operation> Operations() {
  using namespace kernels;
  const auto topk = [](int64_t k) {
    return Operation{&ops::sampling_topk::kContract, &kernels_sampling_topk_hwy[0], &ops_sampling_topk_ref[0], {I(k)}};
  };
  const auto topp = [](double p) {
    return Operation{&ops::sampling_topp::kContract, &kernels_sampling_topp_hwy[0], &ops_sampling_topp_ref[0], {F(p)}};
  };
  const auto minp = [](double p) {
    return Operation{&ops::sampling_minp::kContract, &kernels_sampling_minp_hwy[0], &ops_sampling_minp_ref[0], {F(p)}};
  };
  const auto both = [](int64_t k, double p) {
    return Operation{&ops::sampling_topk_topp::kContract,
                     &kernels_sampling_topk_topp_hwy[0],
                     &ops_sampling_topk_topp_ref[0],
                     {I(k), F(p)}};
  };
  return {topk(1),    topk(2),   topk(50),      topk(1000),     topk(1 << 20), topp(0.0),
          topp(1e-6), topp(0.5), topp(0.9),     topp(1.0),      topp(0.9999),  minp(0.0),
          minp(0.05), minp(1.0), both(50, 0.9), both(300, 0.5), both(1, 0.3),  both(1 << 20, 0.95)};
}

int64_t Token(const Owned& out, int64_t row) { return out.view().LoadInt(row); }

std::vector<lz_scalar> Scalars(const Operation& op, double temperature, int64_t seed, int64_t offset) {
  std::vector<lz_scalar> s = op.filters;
  s.insert(s.end(), {F(temperature), I(seed), I(offset)});
  return s;
}

// Rows that stress a selection: smooth, many ties, all equal, one heavy token, sorted both ways, masked, two values.
std::vector<double> HardRows(int64_t vocab) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  const std::vector<std::function<double(int64_t)>> shapes = {
      [&](int64_t) { return normal(random); },
      [&](int64_t) { return 4 * normal(random); },
      [&](int64_t) { return std::round(3 * normal(random)); },
      [&](int64_t) { return 1.5; },
      [&](int64_t i) { return i == vocab / 3 ? 30.0 : normal(random); },
      [&](int64_t i) { return 12.0 * double(i) / double(vocab); },
      [&](int64_t i) { return -12.0 * double(i) / double(vocab); },
      [&](int64_t i) { return i % 5 == 2 ? normal(random) : -kHuge; },
      [&](int64_t i) { return i % 7 == 3 ? 0.25 : -0.5; },
  };
  std::vector<double> values;
  for (const auto& shape : shapes) {
    for (int64_t i = 0; i < vocab; ++i) values.push_back(shape(i));
  }
  return values;
}

TEST(Sample, AgreesWithFp64OnHardRowsOnEveryInstructionSet) {
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  int64_t compared = 0, different = 0;
  for (const int64_t vocab : {1, 3, 17, 128, 129, 1024, 5003}) {
    const std::vector<double> values = HardRows(vocab);
    const int64_t rows = int64_t(values.size()) / vocab;
    for (const DType type : {DType::kF32, DType::kBF16}) {
      Owned logits(type, {rows, vocab}, {vocab + 5, 1}), out(DType::kI64, {rows}), expected(DType::kI64, {rows});
      logits.Fill(values);
      for (const Operation& op : Operations()) {
        for (const double temperature : {1.0, 0.3, 2.5}) {
          for (int64_t offset = 0; offset < 4; ++offset) {
            Call call({&logits, &out}, Scalars(op, temperature, 11, offset));
            Call reference({&logits, &expected}, Scalars(op, temperature, 11, offset));
            ASSERT_EQ(reference.Run(*op.reference), 0);
            for (const int64_t target : targets) {
              hwy::SetSupportedTargetsForTest(target);
              hwy::GetChosenTarget().DeInit();
              std::fill(out.bytes.begin(), out.bytes.end(), char(0x55));
              ASSERT_EQ(call.Run(*op.kernel), 0);
              for (int64_t r = 0; r < rows; ++r) {
                ++compared;
                if (Token(out, r) == Token(expected, r)) continue;
                ++different;
                ASSERT_TRUE(sampling::RowAgrees(*op.contract, call.args, r, op.contract->tolerance.f32))
                    << hwy::TargetName(target) << " " << op.kernel->id << " vocab " << vocab << " row " << r
                    << " temperature " << temperature << " offset " << offset << " got " << Token(out, r) << " wanted "
                    << Token(expected, r);
              }
            }
          }
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  EXPECT_LE(different * 1000, compared) << different << " of " << compared;
}

TEST(Sample, CheckRejectsATokenThatTheDrawExcludes) {
  const Operation op = Operations()[8];  // top-p 0.9
  Owned logits(DType::kF32, {1, 64}), out(DType::kI64, {1});
  logits.Fill(std::vector<double>(64, 0.0));
  Call call({&logits, &out}, Scalars(op, 1, 5, 0));
  ASSERT_EQ(call.Run(*op.kernel), 0);
  const int64_t token = Token(out, 0);
  EXPECT_TRUE(sampling::RowAgrees(*op.contract, call.args, 0, 1e-5));
  for (int64_t other : {token - 2, token + 2, int64_t{-1}, int64_t{63}, int64_t{64}}) {
    out.view().StoreInt(0, other);
    EXPECT_FALSE(sampling::RowAgrees(*op.contract, call.args, 0, 1e-5)) << other;
  }
}

TEST(Sample, RowsWithoutAnAnswerGiveMinusOne) {
  std::vector<double> values(4 * 40, 0.5);
  values[7] = kNaN;
  std::fill(values.begin() + 40, values.begin() + 80, -kHuge);
  std::fill(values.begin() + 80, values.begin() + 120, kHuge);
  values[120 + 39] = kHuge;  // the limit: all probability is there
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Owned logits(type, {4, 40}), out(DType::kI64, {4}), empty(type, {2, 0}), none(DType::kI64, {2});
    logits.Fill(values);
    for (const Operation& op : Operations()) {
      for (const KernelSpec* kernel : {op.kernel, op.reference}) {
        Call call({&logits, &out}, Scalars(op, 1, 3, 0));
        ASSERT_EQ(call.Run(*kernel), 0);
        for (const int64_t r : {0, 1, 2}) EXPECT_EQ(Token(out, r), -1) << kernel->id << " row " << r;
        EXPECT_EQ(Token(out, 3), 39) << kernel->id;
        Call no_vocabulary({&empty, &none}, Scalars(op, 1, 3, 0));
        ASSERT_EQ(no_vocabulary.Run(*kernel), 0);
        EXPECT_EQ(Token(none, 1), -1) << kernel->id;
      }
    }
  }
}

TEST(Sample, GreedyFormsGiveTheFirstMaximum) {
  std::vector<double> values(300, 1.0);
  values[50] = values[200] = values[299] = 4.0;
  Owned logits(DType::kF32, {8, 300}), out(DType::kI64, {8});
  logits.Fill(values);
  for (const Operation& op : Operations()) {
    const bool greedy = (op.contract->name == "sample_topk" && op.filters[0].value.i == 1) ||
                        (op.contract->name == "sample_topp" && op.filters[0].value.f == 0) ||
                        (op.contract->name == "sample_topk_topp" && op.filters[0].value.i == 1);
    if (!greedy) continue;
    Call call({&logits, &out}, Scalars(op, 1, 1, 1));
    ASSERT_EQ(call.Run(*op.kernel), 0);
    for (int64_t r = 0; r < 8; ++r) EXPECT_EQ(Token(out, r), 50) << op.kernel->id;
  }
}

TEST(Sample, ResultDependsOnSeedOffsetAndRowOnly) {
  const Operation op = Operations()[9];  // p = 1
  Owned logits(DType::kF32, {64, 1000}, {0, 1}), a(DType::kI64, {64}), b(DType::kI64, {64}), c(DType::kI64, {64});
  logits.Fill(std::vector<double>(1000, 0.0));
  Call first({&logits, &a}, Scalars(op, 1, 9, 4)), again({&logits, &b}, Scalars(op, 1, 9, 4));
  Call other({&logits, &c}, Scalars(op, 1, 9, 5));
  again.args.parallel = nullptr;
  ASSERT_EQ(first.Run(*op.kernel), 0);
  ASSERT_EQ(again.Run(*op.kernel), 0);
  ASSERT_EQ(other.Run(*op.kernel), 0);
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_NE(a.bytes, c.bytes);
  EXPECT_NE(Token(a, 0), Token(a, 1));
}

TEST(Sample, DrawnDistributionIsTheKeptOne) {
  constexpr int64_t kVocab = 300, kDraws = 20000;
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> values(kVocab);
  for (double& v : values) v = 2 * normal(random);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Owned logits(type, {kDraws, kVocab}, {0, 1}), out(DType::kI64, {kDraws});
    for (int64_t i = 0; i < kVocab; ++i) logits.view().SetRow(0, i, values[i]);
    const std::vector<double> stored = sampling::ReadRow(logits.view(), 0);
    for (const Operation& op : Operations()) {
      sampling::Filters f = {.temperature = 0.8};
      for (size_t i = 0; i < op.filters.size(); ++i) {
        const std::string_view name = op.contract->params[i + 1].name;
        if (name == "k") f.k = op.filters[i].value.i;
        if (name == "p") f.p = op.filters[i].value.f;
        if (name == "min_p") f.min_p = op.filters[i].value.f;
      }
      const sampling::Row row(stored, f);
      std::vector<double> expected(kVocab);
      for (int64_t i = 0; i < kVocab; ++i) expected[i] = row.IntervalOf(i).hi - row.IntervalOf(i).lo;
      Call call({&logits, &out}, Scalars(op, 0.8, 1234, 0));
      ASSERT_EQ(call.Run(*op.kernel), 0);
      std::vector<int64_t> counts(kVocab);
      for (int64_t r = 0; r < kDraws; ++r) ++counts[Token(out, r)];
      EXPECT_LT(ChiSquareSigmas(counts, expected), 4) << op.kernel->id;
    }
  }
}

TEST(Sample, ValuesOutOfRangeAreRefusedByName) {
  const auto refused = [](const Contract& contract, std::vector<lz_scalar> scalars) -> std::string {
    BoundArgs args = {nullptr, scalars.data(), nullptr};
    const Status s = contract.canonicalize(args);
    return s.ok() ? "" : s.parts().field;
  };
  const Contract &topk = ops::sampling_topk::kContract, &topp = ops::sampling_topp::kContract;
  EXPECT_EQ(refused(topk, {I(1), F(1), I(0), I(0)}), "");
  EXPECT_EQ(refused(topk, {I(0), F(1), I(0), I(0)}), "k");
  EXPECT_EQ(refused(topk, {I(5), F(0), I(0), I(0)}), "temperature");
  EXPECT_EQ(refused(topk, {I(5), F(kHuge), I(0), I(0)}), "temperature");
  EXPECT_EQ(refused(topp, {F(1.0), F(1), I(0), I(0)}), "");
  EXPECT_EQ(refused(topp, {F(1.1), F(1), I(0), I(0)}), "p");
  EXPECT_EQ(refused(topp, {F(kNaN), F(1), I(0), I(0)}), "p");
  EXPECT_EQ(refused(ops::sampling_minp::kContract, {F(-0.1), F(1), I(0), I(0)}), "min_p");
  EXPECT_EQ(refused(ops::sampling_topk_topp::kContract, {I(3), F(2), F(1), I(0), I(0)}), "p");
}

TEST(Sample, WithoutWorkspaceFailsInsteadOfSkipping) {
  const Operation op = Operations()[2];
  Owned logits(DType::kF32, {1, 8}), out(DType::kI64, {1});
  Call call({&logits, &out}, Scalars(op, 1, 1, 1));
  EXPECT_NE(op.kernel->launch(&call.args), 0);
}

TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

}  // namespace
}  // namespace lz
