// What every sample_* kernel takes from sample_rows.h and workspace.h, seen through top-p; and the token check.
#include "kernels/sampling/common/workspace.h"
#include "ops/sampling/topp.h"
#include "tests/kernels/sampling/sample_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_sampling_hwy, ops_sampling_topp_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;

Operation TopP(double p) {
  return {
      &ops::sampling_topp::kContract, &kernels::kernels_sampling_hwy[3], &kernels::ops_sampling_topp_ref[0], {F(p)}};
}

TEST(SampleRows, CheckRejectsATokenThatTheDrawExcludes) {
  const Operation op = TopP(0.9);
  Owned logits(DType::kF32, {1, 64}), out(DType::kI64, {1});
  logits.Fill(std::vector<double>(64, 0.0));
  Call call(Tensors(op, logits, out), Scalars(op, 1, 5, 0));
  ASSERT_EQ(call.Run(*op.kernel), 0);
  const int64_t token = Token(out, 0);
  EXPECT_TRUE(sampling::RowAgrees(*op.contract, call.args, 0, 1e-5));
  for (int64_t other : {token - 2, token + 2, int64_t{-1}, int64_t{63}, int64_t{64}}) {
    out.view().StoreInt(0, other);
    EXPECT_FALSE(sampling::RowAgrees(*op.contract, call.args, 0, 1e-5)) << other;
  }
}

TEST(SampleRows, ResultDependsOnSeedOffsetAndRowOnly) {
  const Operation op = TopP(1.0);
  Owned logits(DType::kF32, {64, 1000}, {0, 1}), a(DType::kI64, {64}), b(DType::kI64, {64}), c(DType::kI64, {64});
  logits.Fill(std::vector<double>(1000, 0.0));
  Call first(Tensors(op, logits, a), Scalars(op, 1, 9, 4)), again(Tensors(op, logits, b), Scalars(op, 1, 9, 4));
  Call other(Tensors(op, logits, c), Scalars(op, 1, 9, 5));
  again.args.parallel = nullptr;
  ASSERT_EQ(first.Run(*op.kernel), 0);
  ASSERT_EQ(again.Run(*op.kernel), 0);
  ASSERT_EQ(other.Run(*op.kernel), 0);
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_NE(a.bytes, c.bytes);
  EXPECT_NE(Token(a, 0), Token(a, 1));
}

TEST(SampleRows, DifferencesMayLeaveFloat32) {
  constexpr int64_t kRows = 200, kVocab = 300;
  const Operation op = TopP(0.95);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Owned logits(type, {kRows, kVocab}, {0, 1}), out(DType::kI64, {kRows});
    for (int64_t i = 0; i < kVocab; ++i) logits.view().SetRow(0, i, 3.3e38 * (2.0 * double(i) / (kVocab - 1) - 1));
    logits.view().SetRow(0, 7, -kHuge);
    for (const double temperature : {1e37, 1e38, 3e38, 1e300}) {
      Call call(Tensors(op, logits, out), Scalars(op, temperature, 9, 4));
      ASSERT_EQ(call.Run(*op.kernel), 0);
      for (int64_t r = 0; r < kRows; ++r) {
        ASSERT_TRUE(sampling::RowAgrees(*op.contract, call.args, r, op.contract->tolerance.f32))
            << Info(type).name << " temperature " << temperature << " row " << r << " got " << Token(out, r);
      }
    }
  }
}

TEST(SampleRows, WithoutWorkspaceFailsInsteadOfSkipping) {
  const Operation op = TopP(0.9);
  Owned logits(DType::kF32, {1, 8}), out(DType::kI64, {1});
  Call call(Tensors(op, logits, out), Scalars(op, 1, 1, 1));
  EXPECT_NE(op.kernel->launch(&call.args), 0);
}

// Row tensors stand for the scalars of each row, and a value out of range is invalid data.
TEST(SampleRows, RowValuesAreTheScalarsOfEachRow) {
  constexpr int64_t kRows = 60, kVocab = 300;
  const Operation op = TopP(0.9);
  Owned logits(DType::kF32, {kRows, kVocab}), p(DType::kF64, {kRows}), temperature(DType::kF32, {kRows, 1}, {2, 1});
  temperature.tensor.ndim = 1;
  Owned mixed(DType::kI64, {kRows}), single(DType::kI64, {kRows});
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::vector<double> values(kRows * kVocab);
  for (double& v : values) v = 3 * normal(random);
  logits.Fill(values);
  for (int64_t r = 0; r < kRows; ++r) {
    p.view().Store(r, double(r % 4) / 3);
    temperature.view().Store(2 * r, r % 3 + 0.5);
  }
  std::vector<lz_scalar> scalars = Scalars(op, 1, 9, 4);
  scalars[0].given = 0;
  Call call({&logits, &p, &temperature, nullptr, &mixed}, scalars);
  for (const KernelSpec* kernel : {op.kernel, op.reference}) {
    ASSERT_EQ(call.Run(*kernel), 0);
    for (int64_t r = 0; r < kRows; ++r) {
      Operation row_op = TopP(double(r % 4) / 3);
      Call one(Tensors(row_op, logits, single), Scalars(row_op, r % 3 + 0.5, 9, 4));
      ASSERT_EQ(one.Run(*kernel), 0);
      EXPECT_EQ(Token(mixed, r), Token(single, r)) << kernel->id << r;
      EXPECT_TRUE(sampling::RowAgrees(*op.contract, call.args, r, 1e-5));
    }
  }
  p.view().Store(7, 1.5);
  for (const KernelSpec* kernel : {op.kernel, op.reference}) EXPECT_EQ(call.Run(*kernel), LZ_LAUNCH_INVALID_DATA);
}

TEST(SampleRows, UniformTakesThePlaceOfASeed) {
  constexpr int64_t kRows = 60, kVocab = 300;
  const Operation op = TopP(0.9);
  Owned logits(DType::kF32, {kRows, kVocab}), uniform(DType::kF64, {kRows, 1}, {3, 1});
  uniform.tensor.ndim = 1;
  Owned by_seed(DType::kI64, {kRows}), by_uniform(DType::kI64, {kRows});
  logits.Fill({0, 1, 2, 3, 2.5, 1.5, 0.5});
  for (int64_t r = 0; r < kRows; ++r) uniform.view().Store(3 * r, PhiloxUniform(9, 4, r, 0));
  Call seeded(Tensors(op, logits, by_seed), Scalars(op, 1, 9, 4));
  Call given({&logits, nullptr, nullptr, &uniform, &by_uniform}, Scalars(op, 1, 0, 0));
  for (const KernelSpec* kernel : {op.kernel, op.reference}) {
    ASSERT_EQ(seeded.Run(*kernel), 0);
    uniform.view().Store(3 * 7, PhiloxUniform(9, 4, 7, 0));
    ASSERT_EQ(given.Run(*kernel), 0);
    for (int64_t r = 0; r < kRows; ++r) EXPECT_EQ(Token(by_uniform, r), Token(by_seed, r)) << kernel->id << r;
    for (const double bad : {1.0, -1e-9, kNaN, kHuge}) {
      uniform.view().Store(3 * 7, bad);
      EXPECT_EQ(given.Run(*kernel), LZ_LAUNCH_INVALID_DATA) << kernel->id << bad;
    }
  }
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
