// hwy.sampling.topp: tokens equal FP64's, draws follow the kept distribution, bad values are refused by name.
#include "ops/sampling/topp.h"
#include "tests/kernels/sampling/sample_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_sampling_topp_hwy, ops_sampling_topp_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;

Operation Make(double p) {
  return {&ops::sampling_topp::kContract,
          &kernels::kernels_sampling_topp_hwy[0],
          &kernels::ops_sampling_topp_ref[0],
          {F(p)}};
}
std::vector<Operation> Calls() { return {Make(0.0), Make(1e-6), Make(0.5), Make(0.9), Make(0.9999), Make(1.0)}; }

TEST(SampleTopP, AgreesWithFp64OnEveryInstructionSet) { ExpectAgreesOnHardRows(Calls()); }
TEST(SampleTopP, RowsWithoutAnAnswerGiveMinusOne) { ExpectMinusOneWithoutAnAnswer(Calls()); }
TEST(SampleTopP, RowsWithoutAnAnswerFailInStrictMode) { ExpectStrictModeFails(Calls()); }
TEST(SampleTopP, DrawsFollowTheKeptDistribution) { ExpectDrawsTheKeptDistribution(Calls()); }
TEST(SampleTopP, GreedyFormsGiveTheFirstMaximum) { ExpectFirstMaximum({Make(0.0)}); }
TEST(SampleTopP, ValuesOutOfRangeAreRefusedByName) {
  const Contract& contract = ops::sampling_topp::kContract;
  EXPECT_EQ(RefusedField(contract, {F(1.0), F(1), I(0), I(0)}), "");
  EXPECT_EQ(RefusedField(contract, {F(1.1), F(1), I(0), I(0)}), "p");
  EXPECT_EQ(RefusedField(contract, {F(kNaN), F(1), I(0), I(0)}), "p");
  EXPECT_EQ(RefusedField(contract, {F(0.5), F(-1), I(0), I(0)}), "temperature");
}

}  // namespace
}  // namespace lz
