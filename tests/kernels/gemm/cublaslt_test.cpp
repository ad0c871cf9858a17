// Plans of cuBLASLt's products and how the library is found, by a stand-in that computes on host memory.
#include "tests/kernels/gemm/cublaslt_testing.h"

#include <cstring>
#include <thread>
#include <vector>

namespace lz::testing {
namespace {
using namespace cublaslt;

struct Call {
  alignas(64) float input[64], weight[64], bias[16], output[64];
  Product product = {.rows = 4, .n = 4, .k = 8, .input_ld = 8, .weight_ld = 8, .output_ld = 4};
  alignas(64) char workspace[8192];
  Call() {
    for (int i = 0; i < 64; ++i) input[i] = float(i % 5), weight[i] = float(i % 7) - 3;
    for (int i = 0; i < 16; ++i) bias[i] = float(i);
  }
  Operands operands(int64_t offset = 0) { return {input, weight, nullptr, output + offset}; }
  lz_kernel_args args(uint64_t bytes) {
    lz_kernel_args made = {.size = sizeof(lz_kernel_args)};
    made.workspace = workspace, made.workspace_bytes = bytes;
    made.stream = workspace + 1;  // an address that no other argument has
    return made;
  }
  float Wanted(int row, int j) const {
    float sum = 0;
    for (int i = 0; i < 8; ++i) sum += input[row * 8 + i] * weight[j * 8 + i];
    return sum;
  }
};

class CublasLt : public CublasLtTest {};

TEST_F(CublasLt, MultipliesOnTheStreamOfTheCall) {
  Call call;
  const lz_kernel_args args = call.args(0);
  ASSERT_EQ(Multiply(call.product, call.operands(), 0, &args), LZ_LAUNCH_DONE);
  for (int row = 0; row < 4; ++row)
    for (int j = 0; j < 4; ++j) EXPECT_EQ(call.output[row * 4 + j], call.Wanted(row, j)) << row << " " << j;
  EXPECT_EQ(fake().stream, args.stream);
  EXPECT_EQ(fake().workspace, nullptr);
  EXPECT_EQ(fake().alignment, 16u);
  EXPECT_EQ(fake().reduction, 2u);  // no sums in the output's dtype
  EXPECT_EQ(fake().most_workspace, kMostWorkspace);
}

TEST_F(CublasLt, AsksForAlgorithmsOncePerShape) {
  Call call;
  call.product.rows = 3;  // no other test has it
  const lz_kernel_args args = call.args(0);
  ASSERT_EQ(Multiply(call.product, call.operands(), 0, &args), LZ_LAUNCH_DONE);
  const FakeCublasLt before = fake();
  ASSERT_EQ(WorkspaceOf(call.product, 0), 0u);
  ASSERT_EQ(Multiply(call.product, call.operands(), 0, &args), LZ_LAUNCH_DONE);
  EXPECT_EQ(fake().heuristics, before.heuristics);
  EXPECT_EQ(fake().alive, before.alive);
  EXPECT_EQ(fake().handles, before.handles);
  EXPECT_EQ(fake().products, before.products + 1);
  call.product.rows = 2;
  ASSERT_EQ(Multiply(call.product, call.operands(), 0, &args), LZ_LAUNCH_DONE);
  EXPECT_EQ(fake().heuristics, before.heuristics + 1);
}

// Algorithm i of the stand-in wants i KiB, which must begin at a multiple of 256 bytes.
TEST_F(CublasLt, RunsTheChosenAlgorithmInTheWorkspaceItAskedFor) {
  Call call;
  for (int choice : {1, 2, 7}) {
    const int wanted = std::min(choice, kMostChoices - 1);
    const uint64_t bytes = WorkspaceOf(call.product, choice);
    EXPECT_EQ(bytes, uint64_t(wanted) * 1024 + kWorkspaceAlignment);
    std::memset(call.workspace, 0, sizeof(call.workspace));
    lz_kernel_args args = call.args(bytes);
    args.workspace = call.workspace + 64;  // as the engine aligns it
    ASSERT_EQ(Multiply(call.product, call.operands(), choice, &args), LZ_LAUNCH_DONE);
    EXPECT_EQ(fake().algorithm, wanted);
    EXPECT_EQ(fake().workspace_bytes, uint64_t(wanted) * 1024);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(fake().workspace) % 256, 0u);
    for (uint64_t i = 0; i < sizeof(call.workspace); ++i) {
      if (i < 64 || i >= 64 + bytes) {
        ASSERT_EQ(call.workspace[i], 0) << i;
      }
    }
    const lz_kernel_args less = call.args(uint64_t(wanted) * 1024 - 1);
    EXPECT_EQ(Multiply(call.product, call.operands(), choice, &less), LZ_LAUNCH_REFUSED);
  }
}

TEST_F(CublasLt, OperandsThatAreLessAlignedHaveAlgorithmsOfTheirOwn) {
  Call call;
  const lz_kernel_args args = call.args(0);
  ASSERT_EQ(Multiply(call.product, call.operands(1), 2, &args), LZ_LAUNCH_DONE);
  EXPECT_EQ(fake().alignment, 4u);
  EXPECT_EQ(fake().workspace_bytes, 0u);  // what WorkspaceOf said holds for aligned operands
  EXPECT_EQ(call.output[1], call.Wanted(0, 0));
  EXPECT_EQ(AlignmentOf(call.operands(2)), 8);
  EXPECT_EQ(AlignmentOf(call.operands(4)), 16);
}

TEST_F(CublasLt, AnAlgorithmThatTheLibraryMarksAsUnusableIsLeftOut) {
  Call call;
  call.product.k = 6;
  fake().status_of_first = 15;
  const uint64_t bytes = WorkspaceOf(call.product, 0);
  const lz_kernel_args args = call.args(bytes);
  ASSERT_EQ(Multiply(call.product, call.operands(), 0, &args), LZ_LAUNCH_DONE);
  EXPECT_EQ(fake().algorithm, 1);
}

TEST_F(CublasLt, NoAlgorithmIsARefusal) {
  Call call;
  call.product.k = 5;
  fake().algorithms = 0;
  const lz_kernel_args args = call.args(0);
  EXPECT_EQ(WorkspaceOf(call.product, 0), 0u);
  EXPECT_FALSE(Serves(call.product, call.operands()));
  EXPECT_EQ(Multiply(call.product, call.operands(), 0, &args), LZ_LAUNCH_REFUSED);
}

TEST_F(CublasLt, StatusesOfTheLibraryHaveTheirMeaning) {
  Call call;
  const lz_kernel_args args = call.args(0);
  for (const auto& [status, code] : std::vector<std::pair<int, int32_t>>{
           {7, LZ_LAUNCH_REFUSED},
           {8, LZ_LAUNCH_REFUSED},
           {15, LZ_LAUNCH_REFUSED},
           {3, 1002},  // CUDA's runtime: out of memory
           {1, 3001},
           {13, 3013},
           {14, 3014},
       }) {
    fake().product_status = status;
    EXPECT_EQ(Multiply(call.product, call.operands(), 0, &args), code) << status;
  }
}

TEST_F(CublasLt, ADeviceWithoutAHandleIsARefusalUntilThereIsOne) {
  Call call;
  call.product.device = 5;
  const int before = fake().handles;
  fake().create_status = 1;
  const lz_kernel_args args = call.args(0);
  EXPECT_EQ(Multiply(call.product, call.operands(), 0, &args), LZ_LAUNCH_REFUSED);
  EXPECT_EQ(WorkspaceOf(call.product, 0), 0u);
  fake().create_status = 0;
  EXPECT_EQ(Multiply(call.product, call.operands(), 0, &args), LZ_LAUNCH_DONE);
  EXPECT_EQ(fake().handles, before + 1);
}

// The address of the bias is a part of the descriptor that all threads share.
TEST_F(CublasLt, ThreadsWithBiasesOfTheirOwn) {
  Call one;
  one.product.bias = 1;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([t, product = one.product] {
      Call call;
      const lz_kernel_args args = call.args(0);
      for (float& b : call.bias) b = float(1000 * t);
      for (int i = 0; i < 500; ++i) {
        Operands operands = call.operands();
        operands.bias = call.bias;
        ASSERT_EQ(Multiply(product, operands, 0, &args), LZ_LAUNCH_DONE);
        ASSERT_EQ(call.output[0], call.Wanted(0, 0) + float(1000 * t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CublasLt, PlansAreBounded) {
  Plans* plans = OfProcess();
  ASSERT_NE(plans, nullptr);
  for (int64_t rows = 1; rows < int64_t(Plans::kMost) + 100; ++rows) {
    ASSERT_NE(plans->Get({.rows = rows, .n = 1, .k = 1, .input_ld = 1, .weight_ld = 1, .output_ld = 1}, 16), nullptr);
    ASSERT_LE(plans->size(), Plans::kMost);
  }
  EXPECT_LE(fake().alive, int(4 * Plans::kMost) + 4);
}

TEST(CublasLtLibrary, AnotherVersionOrAMissingFunctionIsRefusedWithTheReason) {
  for (const auto& [path, reason] : std::vector<std::pair<std::string, std::string>>{
           {LZ_BINARY_DIR "/plugins/libfake_cublaslt_old.so", "cuBLASLt 12 or 13 is wanted, this is 11.11"},
           {LZ_BINARY_DIR "/plugins/libfake_cublaslt_torn.so", "the library has no cublasLtMatmul"},
           {"/nowhere/libcublasLt.so.13", "/nowhere/libcublasLt.so.13"}}) {
    Library library(path.c_str());
    Api api;
    if (!library.why()) Bind(library, &api);
    ASSERT_NE(library.why(), nullptr) << path;
    EXPECT_NE(std::string(library.why()).find(reason), std::string::npos) << library.why();
  }
  Library library(kFakeCublasLt);
  Api api;
  Bind(library, &api);
  EXPECT_EQ(library.why(), nullptr);
  EXPECT_NE(api.matmul, nullptr);
}

}  // namespace
}  // namespace lz::testing
