// What the x86 kernels of mlp.linear in bf16 must do alike.
#pragma once

#include "tests/kernels/mlp/linear/linear_testing.h"
#include "tests/kernels/small_stack.h"

namespace lz::testing {

// Skips where the CPU lacks the instructions.
class Avx512Bf16Test : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16")) return;
#endif
    GTEST_SKIP() << "this CPU has no AVX512-BF16";
  }
};

inline void ExpectPaddedRowsAndZeroSizes(const KernelSpec& kernel, bool column_major = false) {
  const auto expect = [&](LinearCall call) {
    call.column_major = column_major;
    ExpectLikeReference(kernel, call);
  };
  for (int64_t rows : {3, 53}) expect({.type = DType::kBF16, .rows = rows, .n = 37, .k = 75, .bias = true, .pad = 5});
  for (bool bias : {false, true}) expect({.type = DType::kBF16, .rows = 9, .n = 9, .k = 0, .bias = bias});
  expect({.type = DType::kBF16, .rows = 9, .n = 0, .k = 16});
  expect({.type = DType::kBF16, .rows = 0, .n = 9, .k = 16});
}

inline void ExpectTheSameInEveryPartition(const KernelSpec& kernel, bool column_major = false) {
  for (int64_t rows : {1, 50})
    ExpectSameInParts(
        kernel, {.type = DType::kBF16, .rows = rows, .n = 403, .k = 700, .bias = true, .column_major = column_major});
}

inline void ExpectItFitsASmallStack(const KernelSpec& kernel, bool column_major = false) {
  OnSmallStack([&] {
    ExpectLikeReference(kernel, {.type = DType::kBF16, .rows = 70, .n = 70, .k = 70, .column_major = column_major});
  });
}

inline void ExpectANaNInItsRowOnly(const KernelSpec& kernel, bool column_major = false) {
  const LinearCall call = {.type = DType::kBF16, .rows = 2, .n = 6, .k = 70, .column_major = column_major};
  LinearData data(call);
  data.input.view().Set({1, 69}, NAN);
  ASSERT_EQ(data.Run(kernel, call, data.output), 0);
  for (int64_t c = 0; c < call.n; ++c) {
    EXPECT_FALSE(std::isnan(data.output.view().Get({0, c})));
    EXPECT_TRUE(std::isnan(data.output.view().Get({1, c})));
  }
}

// Subnormal factors count as they are or, by the CPU's dot products, as 0: nothing else comes of them.
inline void ExpectSubnormalsAsTheyAreOrZero(const KernelSpec& kernel, bool column_major = false) {
  for (const bool in_weight : {false, true}) {
    const LinearCall call = {.type = DType::kBF16, .rows = 9, .n = 33, .k = 65, .column_major = column_major};
    LinearData data(call);
    const auto fill = [](const View& to, double first, double others) {
      for (int64_t r = 0; r < to.size(0); ++r)
        for (int64_t i = 0; i < to.size(1); ++i) to.Set({r, i}, i ? others : first);
    };
    fill(data.input.view(), 2, in_weight ? 0x1p124 : 0x1p-130);
    fill(data.weight.view(), 1, in_weight ? 0x1p-130 : 0x1p124);
    ASSERT_EQ(data.Run(kernel, call, data.output), 0);
    for (int64_t r = 0; r < call.rows; ++r) {
      for (int64_t c = 0; c < call.n; ++c) {
        const double got = data.output.view().Get({r, c});
        EXPECT_TRUE(got == 2 || got == 3) << got;  // 64 products of 2^-6
      }
    }
  }
}

}  // namespace lz::testing
