// Reference of moe.fused: FP64 without intermediate rounding, any strides, any float dtype.
#include "ops/moe/fused.h"

#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::moe_fused;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), ids(args->tensors[kExpertIds]), weights(args->tensors[kExpertWeights]);
  const View out(args->tensors[kOutput]);
  const bool of_input = args->scalars[kWeighted].value.i == kOfInput;
  std::vector<double> row(size_t(x.size(-1)));
  for (int64_t r = 0; r < out.rows(); ++r) {
    std::vector<double> sum(size_t(out.size(-1)));
    for (int64_t j = 0; j < ids.size(-1); ++j) {
      const int64_t e = ids.LoadInt(ids.RowOffset(r) + j * ids.stride(-1));
      if (e < 0 || e >= View(args->tensors[kGateWeight]).size(0)) continue;
      const double w = weights.GetRow(r, j);
      for (size_t i = 0; i < row.size(); ++i) row[i] = x.GetRow(r, int64_t(i)) * (of_input ? w : 1.0);
      const ops::mlp::Reference mlp(&args->tensors[kGateWeight], &args->scalars[kActivation], e);
      const std::vector<double> y = mlp.Row(row);
      for (size_t i = 0; i < y.size(); ++i) sum[i] += (of_input ? 1.0 : w) * y[i];
    }
    for (size_t i = 0; i < sum.size(); ++i) out.SetRow(r, int64_t(i), sum[i]);
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.moe.fused", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
