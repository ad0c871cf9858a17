// Reference of mlp.head_linear: FP64 accumulation, any strides, any float dtype; output must not alias an input.
#include "ops/mlp/head_linear.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_head_linear;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), w(args->tensors[kWeight]), out(args->tensors[kOutput]);
  const int64_t heads = w.size(0), n = w.size(1), k = w.size(2);
  const int64_t rows = out.rows();  // the leading axes and the heads
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = x.RowOffset(row), head = row % heads;
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += x.Load(from + i * x.stride(-1)) * w.Get({head, j, i});
      out.SetRow(row, j, sum);
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.mlp.head_linear", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
