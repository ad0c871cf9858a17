// Products with column-major weights, divided among threads, shared by mlp.linear and moe.fused. A sum's order depends
// on k and on the number of rows, not on the number of outputs or the partition. Include only from files that Highway
// compiles per target.
#if defined(LZ_KERNELS_GEMM_HWY_COLUMN_MAJOR_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_GEMM_HWY_COLUMN_MAJOR_H_
#undef LZ_KERNELS_GEMM_HWY_COLUMN_MAJOR_H_
#else
#define LZ_KERNELS_GEMM_HWY_COLUMN_MAJOR_H_
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "kernels/gemm/hwy_column_major_gemv.h"
#include "kernels/gemm/hwy_panel_tile.h"
#include "kernels/launch.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::column_major {

constexpr int64_t kUnit = 64;           // outputs per unit that threads share, for few rows
constexpr int64_t kGrainBytes = 65536;  // bytes of weights: about 1 us; less does not pay for waking another thread

// The operands of a product: rows x(0), x(1), ..., and the weights of `parts` products with `outputs` outputs each.
template <class T, class X>
struct Operands {
  const X& x;
  int64_t rows;
  const Weight<T>* weights;
  int parts;
  int64_t outputs;
};

template <int kParts, class T>
std::array<panels::Weights<T>, kParts> PanelsOf(const Weight<T>* weights) {
  std::array<panels::Weights<T>, kParts> panels;
  for (int p = 0; p < kParts; ++p) panels[p] = {weights[p].data, weights[p].stride, /*column_major=*/true};
  return panels;
}

template <class T, class X, class Body>
void MultiplyGemv(const lz_kernel_args* args, const Operands<T, X>& of, const Body& body) {
  decltype(of.x(0)) x[kGemvRows];
  for (int64_t r = 0; r < of.rows; ++r) x[r] = of.x(r);
  const int64_t bytes = kUnit * (of.weights[0].k + 16) * of.parts * int64_t(sizeof(T));
  ParallelFor(args, (of.outputs + kUnit - 1) / kUnit, kGrainBytes / bytes + 1, [&](int64_t begin, int64_t end) {
    HWY_ALIGN float sums[2][kGemvRows][kGemvColumns];
    const int64_t parts =
        ((end - begin) * kUnit + kGemvColumns - 1) / kGemvColumns;  // parts of nearly equal numbers of outputs
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = (begin + (end - begin) * part / parts) * kUnit;
      const int64_t columns = std::min((begin + (end - begin) * (part + 1) / parts) * kUnit, of.outputs) - first;
      for (int p = 0; p < of.parts; ++p) SumGemv(of.weights[p], x, of.rows, first, columns, sums[p]);
      for (int64_t r = 0; r < of.rows; ++r) body(r, first, columns, sums[0][r], sums[1][r]);
    }
  });
}

// Multiplies many rows in FP32.
struct GemmFP32 {
  // Floats of scratch for a product of rows of T.
  template <class T>
  static int64_t WideSize(int64_t rows, int64_t k) {
    return rows <= kGemvRows ? 0 : panel_tiles::WideSize<T>(rows, k);
  }
  template <int kParts, class T, class X, class Body>
  static void Multiply(const lz_kernel_args* args, const Operands<T, X>& of, float* wide, const Body& body) {
    const panels::Size size = {of.rows, of.outputs, of.weights[0].k};
    panel_tiles::Multiply<kParts, std::remove_cvref_t<decltype(*of.x(0))>>(
        args, size, of.x, PanelsOf<kParts>(of.weights).data(), wide, body);
  }
};

// Calls body(row, first, columns, sums of the first product, sums of the second) once for every part of all rows and
// outputs; `first` and, except in the last part, `columns` are even. `wide`: WideSize() floats.
template <class Gemm = GemmFP32, class T, class X, class Body>
void Multiply(const lz_kernel_args* args, const Operands<T, X>& of, float* wide, const Body& body) {
  if (of.rows == 0) return;
  if (of.rows <= kGemvRows) return MultiplyGemv(args, of, body);
  if (of.parts == 1) return Gemm::template Multiply<1>(args, of, wide, body);
  Gemm::template Multiply<2>(args, of, wide, body);
}

}  // namespace lz::HWY_NAMESPACE::column_major
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
