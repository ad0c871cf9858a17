// Linear in bf16 for many rows with AVX512-BF16's dot products, with row-major or column-major weights. For files of
// x86-64 only.
#pragma once

#include "kernels/launch.h"
#include "kernels/mlp/linear/panels/x86_tile.h"
#include "ops/mlp/linear.h"

namespace lz::panels::bf16 {

inline void Linear(const lz_kernel_args* args, bool by_columns) {
  using namespace lz::ops::mlp_linear;
  const lz_tensor &input = args->tensors[kInput], &weight = args->tensors[kWeight], &bias = args->tensors[kBias];
  const lz_tensor& output = args->tensors[kOutput];
  const RowOffsets in(input), out(output);
  const Weights<uint16_t> weights = {Data<const uint16_t>(weight), weight.strides[by_columns ? 1 : 0], by_columns};
  Multiply<1, uint16_t>(
      args, {NumRows(output), weight.shape[0], weight.shape[1]},
      [&](int64_t row) { return Data<const uint16_t>(input) + in[row]; }, Packed{&weights}, &AddPanel,
      [&](int64_t row, int64_t first, int64_t columns, const float* sums, const float*) {
        Store(sums, Given(bias) ? Data<const uint16_t>(bias) + first : nullptr, columns,
              Data<uint16_t>(output) + out[row] + first);
      });
}

}  // namespace lz::panels::bf16
