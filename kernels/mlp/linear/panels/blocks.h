// How own kernels walk through a product with panels: blocks of rows share what a second-level cache holds of a panel,
// tiles of rows what registers hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/launch.h"
#include "ops/mlp/linear/panels.h"

namespace lz::panels {
using ops::mlp_linear_panels::kPanel;

inline constexpr int64_t kBlockRows = 96, kBlockK = 256;
inline constexpr int kTileRows = 6;  // times a panel: 24 vectors of 16 sums
using Sums = float[kPanel];          // of one row

// add(x, tile, w, size, sums): adds the products of tile <= kTileRows rows x with `size` values of k of a panel.
// store(sums, bias, to): 64 columns of a row; bias may be null.
template <class T, class Add, class Store>
void ForBlocks(const lz_kernel_args* args, const Add& add, const Store& store) {
  using namespace ops::mlp_linear_panels;
  const lz_tensor &input = args->tensors[kInput], &panels = args->tensors[kPanels], &bias = args->tensors[kBias];
  const lz_tensor& output = args->tensors[kOutput];
  const RowOffsets in(input), out(output);
  const int64_t rows = NumRows(output), k = panels.shape[1];
  const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;

  const auto run_block = [&](int64_t panel, int64_t first, int64_t count) {
    Sums sums[kBlockRows];
    std::memset(sums, 0, size_t(count) * sizeof(Sums));
    for (int64_t from = 0; from < k; from += kBlockK) {
      for (int64_t row = 0; row < count; row += kTileRows) {
        const int64_t tile = std::min<int64_t>(kTileRows, count - row);
        const T* x[kTileRows];
        for (int64_t r = 0; r < tile; ++r) x[r] = Data<const T>(input) + in[first + row + r] + from;
        add(x, tile, Data<const T>(panels) + (panel * k + from) * kPanel, std::min(kBlockK, k - from), sums + row);
      }
    }
    const T* const biases = Given(bias) ? Data<const T>(bias) + panel * kPanel : nullptr;
    for (int64_t row = 0; row < count; ++row)
      store(sums[row], biases, Data<T>(output) + out[first + row] + panel * kPanel);
  };
  constexpr int64_t kGrain = 64 * 4096;  // products: some 5 us
  const int64_t products = std::min(rows, kBlockRows) * k * kPanel;
  ParallelFor(args, panels.shape[0] * blocks, kGrain / (products + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % blocks * kBlockRows;
      run_block(i / blocks, first, std::min(kBlockRows, rows - first));
    }
  });
}

// f(n) with n = std::integral_constant of `tile`, 1 to kTileRows.
template <class F>
void WithTile(int64_t tile, const F& f) {
  switch (tile) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    case 4: return f(std::integral_constant<int, 4>());
    case 5: return f(std::integral_constant<int, 5>());
    default: return f(std::integral_constant<int, kTileRows>());
  }
}

}  // namespace lz::panels
