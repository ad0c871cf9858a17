// hwy.sampling.topk_topp: tokens equal FP64's, draws follow the kept distribution, bad values are refused by name.
#include "ops/sampling/topk_topp.h"
#include "tests/kernels/sampling/sample_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_sampling_topk_topp_hwy, ops_sampling_topk_topp_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;

Operation Make(int64_t k, double p) {
  return {&ops::sampling_topk_topp::kContract,
          &kernels::kernels_sampling_topk_topp_hwy[0],
          &kernels::ops_sampling_topk_topp_ref[0],
          {I(k), F(p)}};
}
std::vector<Operation> Calls() {
  return {Make(1, 0.3),     Make(9, 0.0),        Make(50, 0.9), Make(300, 0.5),
          Make(1000, 0.99), Make(1 << 20, 0.95), Make(20, 1.0)};
}

TEST(SampleTopKTopP, AgreesWithFp64OnEveryInstructionSet) { ExpectAgreesOnHardRows(Calls()); }
TEST(SampleTopKTopP, RowsWithoutAnAnswerGiveMinusOne) { ExpectMinusOneWithoutAnAnswer(Calls()); }
TEST(SampleTopKTopP, RowsWithoutAnAnswerFailInStrictMode) { ExpectStrictModeFails(Calls()); }
TEST(SampleTopKTopP, DrawsFollowTheKeptDistribution) { ExpectDrawsTheKeptDistribution(Calls()); }
TEST(SampleTopKTopP, GreedyFormsGiveTheFirstMaximum) { ExpectFirstMaximum({Make(1, 0.3), Make(9, 0.0)}); }
TEST(SampleTopKTopP, ValuesOutOfRangeAreRefusedByName) {
  const Contract& contract = ops::sampling_topk_topp::kContract;
  EXPECT_EQ(RefusedField(contract, {I(3), F(0.5), F(1), I(0), I(0)}), "");
  EXPECT_EQ(RefusedField(contract, {I(0), F(0.5), F(1), I(0), I(0)}), "k");
  EXPECT_EQ(RefusedField(contract, {I(3), F(2), F(1), I(0), I(0)}), "p");
  EXPECT_EQ(RefusedField(contract, {I(3), F(0.5), F(0), I(0), I(0)}), "temperature");
}

}  // namespace
}  // namespace lz
