// Products with weights that are stored by columns, shared out over threads: what mlp.linear and moe.fused have in
// common. A sum's order depends on k and on the number of rows, not on the number of outputs or the partition.
// Include inside HWY_NAMESPACE's file only.
#if defined(LZ_KERNELS_MLP_LINEAR_HWY_BY_COLUMNS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_MLP_LINEAR_HWY_BY_COLUMNS_H_
#undef LZ_KERNELS_MLP_LINEAR_HWY_BY_COLUMNS_H_
#else
#define LZ_KERNELS_MLP_LINEAR_HWY_BY_COLUMNS_H_
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/launch.h"
#include "kernels/mlp/linear/hwy_by_columns_few.h"
#include "kernels/mlp/linear/hwy_by_columns_many.h"
#include "kernels/mlp/linear/hwy_strips.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace by_columns {

constexpr int64_t kUnit = 64;           // of outputs of few rows, which threads share
constexpr int64_t kGrainBytes = 65536;  // of weights: about 1 us, less is not worth waking another thread
constexpr int64_t kGrain = 32768;       // products of many rows: some us

// What a product is of: rows x(0), x(1), ..., and the weights of `parts` products with `outputs` outputs each.
template <class T, class X>
struct Operands {
  const X& x;
  int64_t rows;
  const Weight<T>* weights;
  int parts;
  int64_t outputs;
};

template <class T, class X, class Body>
void MultiplyFew(const lz_kernel_args* args, const Operands<T, X>& of, const Body& body) {
  decltype(of.x(0)) x[kFewRows];
  for (int64_t r = 0; r < of.rows; ++r) x[r] = of.x(r);
  const int64_t bytes = kUnit * (of.weights[0].k + 16) * of.parts * int64_t(sizeof(T));
  ParallelFor(args, (of.outputs + kUnit - 1) / kUnit, kGrainBytes / bytes + 1, [&](int64_t begin, int64_t end) {
    HWY_ALIGN float sums[2][kFewRows][kWide];
    for (int64_t first = begin * kUnit; first < std::min(end * kUnit, of.outputs); first += kWide) {
      const int64_t columns = std::min(kWide, std::min(end * kUnit, of.outputs) - first);
      for (int p = 0; p < of.parts; ++p) SumFew(of.weights[p], x, of.rows, first, columns, sums[p]);
      for (int64_t r = 0; r < of.rows; ++r) body(r, first, columns, sums[0][r], sums[1][r]);
    }
  });
}

template <class T, class X, class Body>
void MultiplyMany(const lz_kernel_args* args, const Operands<T, X>& of, float* packed, const Body& body) {
  const int64_t k = of.weights[0].k;
  for (int64_t row = 0; row < of.rows; row += kBlockRows) {
    const int64_t count = std::min(kBlockRows, of.rows - row);
    ParallelFor(args, StripsOf(count), 16384 / (k * kTileRows + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t strip = begin; strip < end; ++strip) {
        decltype(of.x(0)) x[kTileRows] = {};
        const int64_t own = std::min<int64_t>(kTileRows, count - strip * kTileRows);
        for (int64_t j = 0; j < own; ++j) x[j] = of.x(row + strip * kTileRows + j);
        strips::PackStrip(x, own, k, packed + strip * kTileRows * k, kTileRows);
      }
    });
    const int64_t grain = kGrain / (kBlockColumns * count * of.parts * (k + 16)) + 1;
    ParallelFor(args, (of.outputs + kBlockColumns - 1) / kBlockColumns, grain, [&](int64_t begin, int64_t end) {
      HWY_ALIGN Panel panel;
      HWY_ALIGN float sums[2][kBlockRows][kBlockColumns];
      for (int64_t first = begin * kBlockColumns; first < std::min(end * kBlockColumns, of.outputs);
           first += kBlockColumns) {
        const int64_t columns = std::min(kBlockColumns, of.outputs - first);
        for (int p = 0; p < of.parts; ++p) SumMany(of.weights[p], packed, count, first, columns, panel, sums[p]);
        for (int64_t r = 0; r < count; ++r) body(row + r, first, columns, sums[0][r], sums[1][r]);
      }
    });
  }
}

// body(row, first, columns, sums of the first product, sums of the second) for parts of all rows and outputs, once
// each; `first` and, but for the last part, `columns` are even. `packed`: PackedSize() floats.
template <class T, class X, class Body>
void Multiply(const lz_kernel_args* args, const Operands<T, X>& of, float* packed, const Body& body) {
  if (of.rows == 0) return;
  if (of.rows <= kFewRows) return MultiplyFew(args, of, body);
  MultiplyMany(args, of, packed, body);
}

}  // namespace by_columns
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
