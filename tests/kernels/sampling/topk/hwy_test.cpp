// hwy.sampling.topk: tokens equal FP64's, draws follow the kept distribution, bad values are refused by name.
#include "ops/sampling/topk.h"
#include "tests/kernels/sampling/sample_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_sampling_topk_hwy, ops_sampling_topk_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;

Operation Make(int64_t k) {
  return {&ops::sampling_topk::kContract,
          &kernels::kernels_sampling_topk_hwy[0],
          &kernels::ops_sampling_topk_ref[0],
          {I(k)}};
}
std::vector<Operation> Calls() { return {Make(1), Make(2), Make(50), Make(1000), Make(1 << 20)}; }

TEST(SampleTopK, AgreesWithFp64OnEveryInstructionSet) { ExpectAgreesOnHardRows(Calls()); }
TEST(SampleTopK, RowsWithoutAnAnswerGiveMinusOne) { ExpectMinusOneWithoutAnAnswer(Calls()); }
TEST(SampleTopK, RowsWithoutAnAnswerFailInStrictMode) { ExpectStrictModeFails(Calls()); }
TEST(SampleTopK, DrawsFollowTheKeptDistribution) { ExpectDrawsTheKeptDistribution(Calls()); }
TEST(SampleTopK, GreedyFormsGiveTheFirstMaximum) { ExpectFirstMaximum({Make(1)}); }
TEST(SampleTopK, ValuesOutOfRangeAreRefusedByName) {
  const Contract& contract = ops::sampling_topk::kContract;
  EXPECT_EQ(RefusedField(contract, {I(1), F(1), I(0), I(0)}), "");
  EXPECT_EQ(RefusedField(contract, {I(0), F(1), I(0), I(0)}), "k");
  EXPECT_EQ(RefusedField(contract, {I(-4), F(1), I(0), I(0)}), "k");
  EXPECT_EQ(RefusedField(contract, {I(5), F(0), I(0), I(0)}), "temperature");
  EXPECT_EQ(RefusedField(contract, {I(5), F(kHuge), I(0), I(0)}), "temperature");
  EXPECT_EQ(RefusedField(contract, {I(5), F(kNaN), I(0), I(0)}), "temperature");
  EXPECT_EQ(RefusedField(contract, {I(5), F(1), lz_scalar{}, I(0)}), "seed") << "no source of random numbers";
}

}  // namespace
}  // namespace lz
