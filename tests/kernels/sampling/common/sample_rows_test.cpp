// What every sample_* kernel takes from sample_rows.h and workspace.h, seen through top-p; and the token check.
#include "kernels/sampling/common/workspace.h"
#include "ops/sampling/topp.h"
#include "tests/kernels/sampling/sample_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_sampling_topp_hwy, ops_sampling_topp_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;

Operation TopP(double p) {
  return {&ops::sampling_topp::kContract,
          &kernels::kernels_sampling_topp_hwy[0],
          &kernels::ops_sampling_topp_ref[0],
          {F(p)}};
}

TEST(SampleRows, CheckRejectsATokenThatTheDrawExcludes) {
  const Operation op = TopP(0.9);
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

TEST(SampleRows, ResultDependsOnSeedOffsetAndRowOnly) {
  const Operation op = TopP(1.0);
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

TEST(SampleRows, WithoutWorkspaceFailsInsteadOfSkipping) {
  const Operation op = TopP(0.9);
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
