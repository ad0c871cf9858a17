// Error bounds of the numerics classes that kernels may declare besides the contract's own tolerance, in one table.
#pragma once

#include <array>
#include <string_view>

namespace lz::verify {

struct ErrorBound {
  double rel_f;    // |x - r|_2 / |r|_2 over the tensor
  double row_max;  // maximum over rows of max |x - r| / max |r|
};
struct NumericsBounds {
  std::string_view name;
  std::string_view meaning;
  ErrorBound f32, bf16;  // by the output's dtype; f16 and f64 keep the contract's tolerance
  double lse;            // absolute, times max(1, |lse|); 0: no such output
};

inline constexpr auto kNumericsBounds = std::to_array<NumericsBounds>({
    {"fp32", "FP32 multiply-add, FP32 P", {2e-6, 4e-6}, {2.2e-3, 0x1p-8}, 4e-6},
    {"bf16-p", "BF16 MMA, P rounded to BF16", {2.5e-3, 4e-3}, {3e-3, 6e-3}, 1e-5},
    {"w4a16", "4-bit weights as exact BF16, BF16 MMA", {2e-5, 1e-4}, {2.2e-3, 0x1p-8}, 0},
    {"fp8-128", "E4M3 MMA, FP32 promotion every 128 of K", {5e-4, 2e-3}, {2.5e-3, 5e-3}, 0},
    {"w8a16", "int8 weights per channel, exact as BF16", {2e-5, 1e-4}, {2.2e-3, 0x1p-8}, 0},
    {"w4a8-int", "4-bit weights, int8 activations per 32, exact integer dots", {1e-6, 2e-6}, {2.2e-3, 0x1p-8}, 0},
    {"w8a8-int", "int8 weights, int8 activations per row, exact integer dots", {1e-6, 2e-6}, {2.2e-3, 0x1p-8}, 0},
    {"int-exact", "exact integer dot products, FP32 sums", {1e-6, 2e-6}, {2.2e-3, 0x1p-8}, 0},
    {"codec", "bytes equal to the definition", {0, 0}, {0, 0}, 0},
});

constexpr const NumericsBounds* FindNumerics(std::string_view name) {
  for (const NumericsBounds& bounds : kNumericsBounds) {
    if (bounds.name == name) return &bounds;
  }
  return nullptr;
}

}  // namespace lz::verify
