// The sampling kernels on rows that stress a selection, emulated: each token is one that FP64 arithmetic with rounding
// may give, and nearly all are FP64's own.
#include "ops/sampling/minp.h"
#include "ops/sampling/speculative.h"
#include "ops/sampling/topk.h"
#include "ops/sampling/topk_topp.h"
#include "ops/sampling/topp.h"
#include "tests/cuda_emulation/device.h"
#include "tests/kernels/kernel_of.h"
#include "tests/kernels/sampling/sample_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_sampling_cuda, ops_sampling_topk_ref, ops_sampling_topp_ref, ops_sampling_minp_ref,
    ops_sampling_topk_topp_ref, kernels_sampling_speculative_cuda, ops_sampling_speculative_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;

std::vector<Operation> Calls() {
  using namespace kernels;
  std::vector<Operation> calls;
  for (const int64_t k : {1, 50, 1000}) {
    calls.push_back({&ops::sampling_topk::kContract,
                     &KernelOf(kernels_sampling_cuda, "cuda.sampling.topk"),
                     &ops_sampling_topk_ref[0],
                     {I(k)}});
  }
  for (const double p : {0.0, 0.5, 0.95, 1.0}) {
    calls.push_back({&ops::sampling_topp::kContract,
                     &KernelOf(kernels_sampling_cuda, "cuda.sampling.topp"),
                     &ops_sampling_topp_ref[0],
                     {F(p)}});
  }
  for (const double p : {0.05}) {
    calls.push_back({&ops::sampling_minp::kContract,
                     &KernelOf(kernels_sampling_cuda, "cuda.sampling.minp"),
                     &ops_sampling_minp_ref[0],
                     {F(p)}});
  }
  for (const auto& [k, p] : {std::pair(50, 0.9), {1000, 0.5}}) {
    calls.push_back({&ops::sampling_topk_topp::kContract,
                     &KernelOf(kernels_sampling_cuda, "cuda.sampling.topk_topp"),
                     &ops_sampling_topk_topp_ref[0],
                     {I(k), F(p)}});
  }
  return calls;
}

TEST(EmulatedSampling, AgreesWithFp64OnHardRows) {
  int64_t compared = 0, different = 0, offset = 0;
  for (const int64_t vocab : {1, 3, 1025, 5003}) {
    std::vector<double> values = HardRows(vocab);
    for (const double scale : {1e-42, 8e37}) {  // subnormal, and differences beyond FP32
      for (int64_t i = 0; i < vocab; ++i) values.push_back(scale * values[size_t(i)]);
    }
    const int64_t rows = int64_t(values.size()) / vocab;
    for (const DType type : {DType::kF32, DType::kBF16}) {
      if (type == DType::kBF16 && vocab != 1025) continue;
      Owned logits(type, {rows, vocab}, {vocab + 5, 1}), out(DType::kI64, {rows}), expected(DType::kI64, {rows});
      logits.Fill(values);
      for (const Operation& op : Calls()) {
        const double temperature = std::array{1.0, 0.3, 1e-36, 1e35}[size_t(offset % 4)];
        Call call(Tensors(op, logits, out), Scalars(op, temperature, 11, ++offset));
        Call reference(Tensors(op, logits, expected), Scalars(op, temperature, 11, offset));
        ASSERT_EQ(reference.Run(*op.reference), 0);
        ASSERT_EQ(call.Run(*op.kernel), 0);
        for (int64_t r = 0; r < rows; ++r) {
          ++compared;
          different += Token(out, r) != Token(expected, r);
          ASSERT_TRUE(sampling::RowAgrees(*op.contract, call.args, r, op.contract->tolerance.f32))
              << op.kernel->id << " " << Info(type).name << " vocab " << vocab << " row " << r << " temperature "
              << temperature << " got " << Token(out, r) << " wanted " << Token(expected, r);
        }
      }
    }
  }
  EXPECT_LE(different * 500, compared) << different << " of " << compared;
}

// Three rounds of parts, and ties among them. A cluster of blocks and a block alone give the same tokens.
TEST(EmulatedSampling, AgreesWithFp64OnLongRows) {
  const auto expect = [](int64_t vocab, DType type, int64_t rows) {
    const std::vector<double> hard = HardRows(vocab);
    Owned logits(type, {rows, vocab}), out(DType::kI64, {rows});
    logits.Fill({hard.begin(), hard.begin() + rows * vocab});
    int64_t offset = 0;
    for (const Operation& op : Calls()) {
      Call call(Tensors(op, logits, out), Scalars(op, 0.8, 5, ++offset));
      ASSERT_EQ(call.Run(*op.kernel), 0);
      const std::vector<char> tokens = out.bytes;
      for (int64_t r = 0; r < rows; ++r) {
        EXPECT_TRUE(sampling::RowAgrees(*op.contract, call.args, r, op.contract->tolerance.f32))
            << op.kernel->id << " row " << r << " got " << Token(out, r);
      }
      emulation::UseClusters(false);
      EXPECT_EQ(call.Run(*op.kernel), 0);
      emulation::UseClusters(true);
      EXPECT_EQ(out.bytes, tokens) << op.kernel->id << " vocab " << vocab;
    }
  };
  expect(70001, DType::kF32, 3);
  expect(9999, DType::kBF16, 8);
}

TEST(EmulatedSampling, RowsWithoutAnAnswerGiveMinusOne) { ExpectMinusOneWithoutAnAnswer(Calls()); }

TEST(EmulatedSampling, SpeculationIsTheReferences) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  const auto probabilities = [&](int64_t rows, int64_t vocab) {
    std::vector<double> values;
    for (int64_t i = 0; i < rows * vocab; ++i) values.push_back(std::exp(normal(random)) / double(vocab));
    return values;
  };
  for (const DType type : {DType::kF32, DType::kF16}) {
    for (const int64_t vocab : {1, 100, 3001}) {
      for (const int64_t n : {0, 1, 4}) {
        Owned draft(type, {9, n, vocab}), ids(DType::kI32, {9, n}), target(type, {9, n + 1, vocab});
        Owned out(DType::kI64, {9, n + 1}), accepted(DType::kI64, {9});
        draft.Fill(probabilities(std::max<int64_t>(9 * n, 1), vocab));
        target.Fill(probabilities(9 * (n + 1), vocab));
        for (int64_t i = 0; i < 9 * n; ++i) ids.view().StoreInt(i, int64_t(random() % uint64_t(vocab + 1)));
        Call call({&draft, &ids, &target, nullptr, &out, &accepted}, {I(21), I(2)});
        ASSERT_EQ(call.Run(kernels::ops_sampling_speculative_ref[0]), 0);
        const std::vector<char> tokens = out.bytes, counts = accepted.bytes;
        ASSERT_EQ(call.Run(kernels::kernels_sampling_speculative_cuda[0]), 0);
        EXPECT_EQ(out.bytes, tokens) << "vocab " << vocab << " n " << n;
        EXPECT_EQ(accepted.bytes, counts);
      }
    }
  }
}

}  // namespace
}  // namespace lz
