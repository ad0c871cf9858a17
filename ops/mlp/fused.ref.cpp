// Reference of mlp.fused: FP64 without intermediate rounding, any strides, any float dtype.
#include "ops/mlp/fused.h"

#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_fused;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), out(args->tensors[kOutput]);
  const ops::mlp::Reference mlp(&args->tensors[kGateWeight], &args->scalars[kActivation]);
  std::vector<double> row(size_t(x.size(-1)));
  for (int64_t r = 0; r < out.rows(); ++r) {
    for (size_t i = 0; i < row.size(); ++i) row[i] = x.GetRow(r, int64_t(i));
    const std::vector<double> y = mlp.Row(row);
    for (size_t i = 0; i < y.size(); ++i) out.SetRow(r, int64_t(i), y[i]);
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.mlp.fused", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
