// What every kernel of linear_panels must do: its tensors end where a page without access begins.
#pragma once

#include <thread>

#include "ops/mlp/linear/panels/prepack.h"
#include "tests/kernels/kernel_of.h"
#include "tests/kernels/libraries.h"
#include "tests/kernels/mlp/linear/linear_testing.h"

namespace lz::kernels {
extern const KernelFamily ops_mlp_linear_panels_prepack_ref;
}  // namespace lz::kernels

namespace lz::testing {
using ops::mlp_linear_panels::kPanel;

// Like mlp.linear's reference with the weights that were packed.
inline void ExpectPanelsLikeReference(const KernelSpec& kernel, const LinearCall& call) {
  SCOPED_TRACE(std::string(Info(call.type).name) + " rows " + std::to_string(call.rows) + " n " +
               std::to_string(call.n) + " k " + std::to_string(call.k) + (call.bias ? " bias" : ""));
  LinearData data(call);
  Matrix packed(call.type, call.n / kPanel * call.k, kPanel);
  int64_t shape[] = {call.n / kPanel, call.k, kPanel}, strides[] = {call.k * kPanel, kPanel, 1};
  lz_tensor panels = packed.tensor();
  panels.ndim = 3;
  panels.shape = shape;
  panels.strides = strides;
  const lz_tensor pack[] = {data.weight.tensor(), panels};
  const lz_kernel_args args = {.size = sizeof(lz_kernel_args), .tensors = pack};
  ASSERT_EQ(kernels::ops_mlp_linear_panels_prepack_ref[0].launch(&args), 0);

  ASSERT_EQ(data.Run(kernel, call, data.output, data.input.tensor(), panels), 0);
  ASSERT_EQ(data.Run(kernels::ops_mlp_linear_ref[0], call, data.wanted), 0);
  const Tolerance tolerance = ops::mlp_linear::kContract.tolerance;
  EXPECT_LE(RowMaxError(data.output.view(), data.wanted.view()),
            call.type == DType::kF32 ? tolerance.f32 : tolerance.bf16);
}

inline void ExpectPanelsLikeReference(const KernelSpec& kernel, DType type) {
  for (int64_t rows : {1, 2, 3, 5, 6, 7, 33, 64, 65, 97})
    for (int64_t n : {64, 192})
      for (int64_t k : {32, 288, 544})
        ExpectPanelsLikeReference(kernel,
                                  {.type = type, .rows = rows, .n = n, .k = k, .bias = (rows + k / 32) % 2 == 0});
  ExpectPanelsLikeReference(kernel, {.type = type, .rows = 0, .n = 64, .k = 32});
  ExpectPanelsLikeReference(kernel, {.type = type, .rows = 3, .n = 0, .k = 32});
  for (int64_t parts = 2; parts <= 5; ++parts) {
    ExpectPanelsLikeReference(kernel, {.type = type, .rows = 50, .n = 448, .k = 288, .bias = true, .parts = parts});
  }
}

inline void ExpectPanelsLikeReferenceOnManyThreads(const KernelSpec& kernel, DType type) {
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&kernel, type, t] {
      for (int64_t i = 1; i < 20; ++i) {
        ExpectPanelsLikeReference(kernel, {.type = type, .rows = i + t, .n = 128, .k = 32 * (1 + i % 3), .bias = true});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline bool HasAvx512Bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

// A family of two kernels of a C library, for f32 and for bf16.
class PanelsLibraryTest : public ::testing::Test {
 protected:
  PanelsLibraryTest(KernelFamily family, const std::string& id)
      : f32_(KernelOf(family, id)), bf16_(KernelOf(family, id + "_bf16")) {}
  void SetUp() override {
    if (const char* why = libraries::OpenFor(f32_)) GTEST_SKIP() << why;
  }
  void ExpectLikeReference() {
    ExpectPanelsLikeReference(f32_, DType::kF32);
    if (!HasAvx512Bf16()) return;
    ASSERT_EQ(libraries::OpenFor(bf16_), nullptr);
    ExpectPanelsLikeReference(bf16_, DType::kBF16);
  }
  void ExpectLikeReferenceOnManyThreads() {
    ExpectPanelsLikeReferenceOnManyThreads(f32_, DType::kF32);
    if (HasAvx512Bf16()) ExpectPanelsLikeReferenceOnManyThreads(bf16_, DType::kBF16);
  }

 private:
  const KernelSpec &f32_, &bf16_;
};

}  // namespace lz::testing
