// Linear with column-major weights (GPT-2's) by libxsmm 1.17 (libxsmm.h), which has no kernels for row-major weights.
//   input  [..., k]  f32, last dim dense     weight [n, k]  f32, first dim dense
//   bias   [n]       f32, optional           output [..., n]
// Workspace: none. Source: libxsmm. FP32 sums over k in order, in blocks of 256.
#include "kernels/gemm/libxsmm.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "core/kernel.h"
#include "kernels/gemm/parallel.h"
#include "ops/mlp/linear.h"

namespace lz {
namespace {
using namespace lz::ops::mlp_linear;

constexpr int64_t kMaxSize = std::numeric_limits<int>::max();
constexpr int64_t kRows = 64, kColumns = 64, kDepth = 256;  // sizes of one product: 64 KiB of weights, read for
                                                            // all rows

// The distance of a tensor's rows if libxsmm can read `width` elements of each as a matrix; otherwise 0.
int64_t Distance(const lz_tensor& t, int64_t width) {
  const RowOffsets offsets(t);
  return offsets.even() && offsets[1] >= width && offsets[1] <= kMaxSize ? offsets[1] : 0;
}

struct Linear {
  explicit Linear(const lz_tensor* tensors)
      : input(tensors[kInput]),
        weight(tensors[kWeight]),
        bias(tensors[kBias]),
        output(tensors[kOutput]),
        in(input),
        out(output) {
    const int64_t n = weight.shape[0], k = weight.shape[1], column = weight.strides[1];
    const int64_t x = Distance(input, k), y = Distance(output, n);
    if (rows > 1 && x > 0 && y > 0) {
      block_rows = kRows;
      ld_x = int(x);
      ld_out = int(y);
    }
    if (column >= std::min(n, kColumns) && column <= kMaxSize) {
      depth = kDepth;
      ld_w = int(column);
    }
  }

  // The columns [first, first + columns), at most kColumns.
  bool Run(int64_t first, int64_t columns) const {
    const int64_t k = weight.shape[1];
    for (int64_t row = 0; Given(bias) && row < rows; ++row) {
      std::memcpy(Data<float>(output) + out[row] + first, Data<const float>(bias) + first,
                  size_t(columns) * sizeof(float));
    }
    for (int64_t from = 0; from < k; from += depth) {
      const float* w = Data<const float>(weight) + first + from * weight.strides[1];
      for (int64_t row = 0; row < rows; row += block_rows) {
        const libxsmm::Product product = {.rows = int(std::min(block_rows, rows - row)),
                                          .columns = int(columns),
                                          .k = int(std::min(depth, k - from)),
                                          .ld_x = ld_x,
                                          .ld_w = ld_w,
                                          .ld_out = ld_out,
                                          .add = from > 0 || Given(bias)};
        if (!libxsmm::Multiply(product, Data<const float>(input) + in[row] + from, w,
                               Data<float>(output) + out[row] + first)) {
          return false;
        }
      }
    }
    return true;
  }

  const lz_tensor &input, &weight, &bias, &output;
  const RowOffsets in, out;
  const int64_t rows = NumRows(output);
  int64_t block_rows = 1, depth = 1;  // one row at a time if the strides are not those of a matrix
  int ld_x = kDepth, ld_w = kColumns, ld_out = kColumns;
};

int32_t Launch(const lz_kernel_args* args) {
  const Linear linear(args->tensors);
  std::atomic<bool> failed = false;
  gemm::ForColumns(args, linear.rows, linear.weight.shape[0], linear.weight.shape[1],
                   [&](int64_t first, int64_t columns) {
                     for (const int64_t end = first + columns; first < end; first += kColumns) {
                       if (!linear.Run(first, std::min(kColumns, end - first))) failed = true;
                     }
                   });
  return failed ? 1 : 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"weight.columns_dense", Rel::kEq, 1},
    {"bias.last_dim_stride1", Rel::kEq, 1},
    {"k", Rel::kGt, 0},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "libxsmm.mlp.linear",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kF32),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kAny,
     .priority = kLibraryPriority,
     .launch = &Launch,
     .open = &libxsmm::Open},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
