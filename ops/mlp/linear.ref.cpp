// Reference of mlp.linear: FP64 accumulation, any strides, any float dtype; output must not alias an input.
#include "ops/mlp/linear.h"
#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), w(args->tensors[kWeight]), bias(args->tensors[kBias]);
  const View out(args->tensors[kOutput]);
  const int64_t n = w.size(0), k = w.size(1);
  const int64_t rows = out.rows();  // not the input's: k may be 0, and then the output is the bias
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = x.RowOffset(row);
    for (int64_t column = 0; column < n; ++column) {
      const int64_t weights = column * w.stride(0);
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += x.Load(from + i * x.stride(-1)) * w.Load(weights + i * w.stride(1));
      out.SetRow(row, column, sum + (bias.given() ? bias.Get({column}) : 0.0));
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.mlp.linear", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
