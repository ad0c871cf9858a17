// The kernels of sampling.{minp,topk,topk_topp,topp}: tokens equal FP64's, draws follow the kept distribution, bad
// values are refused by name.
#include "ops/sampling/minp.h"
#include "ops/sampling/topk.h"
#include "ops/sampling/topk_topp.h"
#include "ops/sampling/topp.h"
#include "tests/kernels/kernel_of.h"
#include "tests/kernels/sampling/sample_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_sampling_hwy;
extern const KernelFamily ops_sampling_minp_ref, ops_sampling_topk_ref, ops_sampling_topk_topp_ref,
    ops_sampling_topp_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;

namespace minp {

Operation Make(double min_p) {
  return {&ops::sampling_minp::kContract,
          &KernelOf(kernels::kernels_sampling_hwy, "hwy.sampling.minp"),
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

}  // namespace minp

namespace topk {

Operation Make(int64_t k) {
  return {&ops::sampling_topk::kContract,
          &KernelOf(kernels::kernels_sampling_hwy, "hwy.sampling.topk"),
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

}  // namespace topk

namespace topk_topp {

Operation Make(int64_t k, double p) {
  return {&ops::sampling_topk_topp::kContract,
          &KernelOf(kernels::kernels_sampling_hwy, "hwy.sampling.topk_topp"),
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

}  // namespace topk_topp

namespace topp {

Operation Make(double p) {
  return {&ops::sampling_topp::kContract,
          &KernelOf(kernels::kernels_sampling_hwy, "hwy.sampling.topp"),
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

}  // namespace topp
}  // namespace
}  // namespace lz
