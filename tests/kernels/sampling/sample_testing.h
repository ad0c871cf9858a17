// What the sample_* kernels have in common, as expectations over a list of calls of one operation.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "hwy/targets.h"
#include "ops/common/sampling_check.h"
#include "tests/kernels/sampling/sampling_testing.h"

namespace lz::sampling_testing {

inline constexpr double kHuge = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Operation {
  const Contract* contract;
  const KernelSpec* kernel;
  const KernelSpec* reference;
  std::vector<lz_scalar> filters;  // the scalars before temperature, seed and offset
};

// logits, no tensor of row values, tokens.
inline std::vector<const Owned*> Tensors(const Operation& op, const Owned& logits, const Owned& out) {
  std::vector<const Owned*> tensors = {&logits};
  const auto is_tensor = [](const Param& p) { return p.kind == ParamKind::kTensor; };
  tensors.resize(size_t(std::ranges::count_if(op.contract->params, is_tensor)));
  tensors.push_back(&out);
  return tensors;
}

inline int64_t Token(const Owned& out, int64_t row) { return out.view().LoadInt(row); }

inline std::vector<lz_scalar> Scalars(const Operation& op, double temperature, int64_t seed, int64_t offset) {
  std::vector<lz_scalar> s = op.filters;
  s.insert(s.end(), {F(temperature), I(seed), I(offset)});
  return s;
}

// Rows that stress a selection: smooth, many ties, all equal, one heavy token, sorted both ways, masked, two values.
inline std::vector<double> HardRows(int64_t vocab) {
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

// Every row on every instruction set: equal tokens but for rounding at a boundary, which is rare.
inline void ExpectAgreesOnHardRows(const std::vector<Operation>& operations) {
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  int64_t compared = 0, different = 0;
  for (const int64_t vocab : {1, 3, 17, 128, 129, 1024, 5003}) {
    const std::vector<double> values = HardRows(vocab);
    const int64_t rows = int64_t(values.size()) / vocab;
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      Owned logits(type, {rows, vocab}, {vocab + 5, 1}), out(DType::kI64, {rows}), expected(DType::kI64, {rows});
      logits.Fill(values);
      for (const Operation& op : operations) {
        for (const double temperature : {1.0, 0.3, 2.5}) {
          for (int64_t offset = 0; offset < 4; ++offset) {
            Call call(Tensors(op, logits, out), Scalars(op, temperature, 11, offset));
            Call reference(Tensors(op, logits, expected), Scalars(op, temperature, 11, offset));
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

inline void ExpectMinusOneWithoutAnAnswer(const std::vector<Operation>& operations) {
  std::vector<double> values(4 * 40, 0.5);
  values[7] = kNaN;
  std::fill(values.begin() + 40, values.begin() + 80, -kHuge);
  std::fill(values.begin() + 80, values.begin() + 119, -kHuge);
  values[119] = kHuge;       // the limit too, without a finite logit
  values[120 + 39] = kHuge;  // the limit: all probability is there
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    Owned logits(type, {4, 40}), out(DType::kI64, {4}), empty(type, {2, 0}), none(DType::kI64, {2});
    logits.Fill(values);
    for (const Operation& op : operations) {
      for (const KernelSpec* kernel : {op.kernel, op.reference}) {
        Call call(Tensors(op, logits, out), Scalars(op, 1, 3, 0));
        ASSERT_EQ(call.Run(*kernel), 0);
        for (const int64_t r : {0, 1}) EXPECT_EQ(Token(out, r), -1) << kernel->id << " row " << r;
        for (const int64_t r : {2, 3}) EXPECT_EQ(Token(out, r), 39) << kernel->id << " row " << r;
        Call no_vocabulary(Tensors(op, empty, none), Scalars(op, 1, 3, 0));
        ASSERT_EQ(no_vocabulary.Run(*kernel), 0);
        EXPECT_EQ(Token(none, 1), -1) << kernel->id;
      }
    }
  }
}

// Chi-square of 20000 draws from one row against the FP64 intervals.
inline void ExpectDrawsTheKeptDistribution(const std::vector<Operation>& operations) {
  constexpr int64_t kVocab = 300, kDraws = 20000;
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> values(kVocab);
  for (double& v : values) v = 2 * normal(random);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    Owned logits(type, {kDraws, kVocab}, {0, 1}), out(DType::kI64, {kDraws});
    for (int64_t i = 0; i < kVocab; ++i) logits.view().SetRow(0, i, values[i]);
    const std::vector<double> stored = sampling::ReadRow(logits.view(), 0);
    for (const Operation& op : operations) {
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
      Call call(Tensors(op, logits, out), Scalars(op, 0.8, 1234, 0));
      ASSERT_EQ(call.Run(*op.kernel), 0);
      std::vector<int64_t> counts(kVocab);
      for (int64_t r = 0; r < kDraws; ++r) ++counts[Token(out, r)];
      EXPECT_LT(ChiSquareSigmas(counts, expected), 4) << op.kernel->id;
    }
  }
}

// The first of several equal maxima, for calls that mean the argmax.
inline void ExpectFirstMaximum(const std::vector<Operation>& operations) {
  std::vector<double> values(300, 1.0);
  values[50] = values[200] = values[299] = 4.0;
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    Owned logits(type, {8, 300}), out(DType::kI64, {8});
    logits.Fill(values);
    for (const Operation& op : operations) {
      Call call(Tensors(op, logits, out), Scalars(op, 1, 1, 1));
      ASSERT_EQ(call.Run(*op.kernel), 0);
      for (int64_t r = 0; r < 8; ++r) EXPECT_EQ(Token(out, r), 50) << op.kernel->id;
    }
  }
}

// Strict mode: a row without an answer fails the call; rows that have one do not.
inline void ExpectStrictModeFails(const std::vector<Operation>& operations) {
  std::vector<double> values(3 * 40, 0.5);
  Owned good(DType::kF32, {3, 40}), bad(DType::kF32, {3, 40}), out(DType::kI64, {3});
  good.Fill(values);
  values[47] = kNaN;
  bad.Fill(values);
  for (const Operation& op : operations) {
    for (const KernelSpec* kernel : {op.kernel, op.reference}) {
      Call answered(Tensors(op, good, out), Scalars(op, 1, 3, 0)),
          unanswered(Tensors(op, bad, out), Scalars(op, 1, 3, 0));
      answered.args.flags = unanswered.args.flags = LZ_KERNEL_STRICT;
      EXPECT_EQ(answered.Run(*kernel), LZ_LAUNCH_DONE) << kernel->id;
      EXPECT_EQ(unanswered.Run(*kernel), LZ_LAUNCH_INVALID_DATA) << kernel->id;
    }
  }
}

// The field that the contract refuses, empty for a call that it takes.
inline std::string RefusedField(const Contract& contract, std::vector<lz_scalar> scalars) {
  const std::vector<lz_tensor> absent(contract.params.size(), lz_tensor{.ndim = -1});
  BoundArgs args = {absent.data(), scalars.data(), nullptr};
  const Status s = contract.canonicalize(args);
  return s.ok() ? "" : s.parts().field;
}

}  // namespace lz::sampling_testing
