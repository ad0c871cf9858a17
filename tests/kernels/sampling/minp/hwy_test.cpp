// hwy.sampling.minp: tokens equal FP64's, draws follow the kept distribution, bad values are refused by name.
#include "ops/sampling/minp.h"
#include "tests/kernels/sampling/sample_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_sampling_minp_hwy, ops_sampling_minp_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;

Operation Make(double min_p) {
  return {&ops::sampling_minp::kContract,
          &kernels::kernels_sampling_minp_hwy[0],
          &kernels::ops_sampling_minp_ref[0],
          {F(min_p)}};
}
std::vector<Operation> Calls() { return {Make(0.0), Make(0.05), Make(0.7), Make(1.0)}; }

TEST(SampleMinP, AgreesWithFp64OnEveryInstructionSet) { ExpectAgreesOnHardRows(Calls()); }
TEST(SampleMinP, RowsWithoutAnAnswerGiveMinusOne) { ExpectMinusOneWithoutAnAnswer(Calls()); }
TEST(SampleMinP, RowsWithoutAnAnswerFailInStrictMode) { ExpectStrictModeFails(Calls()); }
TEST(SampleMinP, DrawsFollowTheKeptDistribution) { ExpectDrawsTheKeptDistribution(Calls()); }
TEST(SampleMinP, ValuesOutOfRangeAreRefusedByName) {
  const Contract& contract = ops::sampling_minp::kContract;
  EXPECT_EQ(RefusedField(contract, {F(1.0), F(1), I(0), I(0)}), "");
  EXPECT_EQ(RefusedField(contract, {F(-0.1), F(1), I(0), I(0)}), "min_p");
  EXPECT_EQ(RefusedField(contract, {F(1.5), F(1), I(0), I(0)}), "min_p");
  EXPECT_EQ(RefusedField(contract, {F(0.5), F(0), I(0), I(0)}), "temperature");
}

}  // namespace
}  // namespace lz
