// Residual addition and LayerNorm of the rounded sum over the last axis on CUDA, in one pass over the rows.
//   input, residual      [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight, bias         [hidden]       dtype of input, optional
//   output, residual_out [..., hidden]  dtype of input; output may alias input, residual_out may alias residual
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formula from arXiv:1607.06450 eq. 4.
#include "kernels/norm/layer_cuda.h"
#include "ops/norm/layer_residual.h"

namespace lz {
namespace {
using namespace lz::ops::norm_layer_residual;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &residual = args->tensors[kResidual];
  const lz_tensor &w = args->tensors[kWeight], &b = args->tensors[kBias];
  return WithCudaFloat(DTypeOf(x), [&](auto t) {
    using T = decltype(t);
    const LayerRows<T> rows = {.x = Data<const T>(x),
                               .residual = Data<const T>(residual),
                               .weight = Given(w) ? Data<const T>(w) : nullptr,
                               .bias = Given(b) ? Data<const T>(b) : nullptr,
                               .sum = Data<T>(args->tensors[kResidualOut]),
                               .out = Data<T>(args->tensors[kOutput]),
                               .x_rows = DeviceRows(x),
                               .residual_rows = DeviceRows(residual),
                               .rows = NumRows(x),
                               .hidden = x.shape[x.ndim - 1],
                               .eps = float(args->scalars[kEps].value.f),
                               .offset = float(args->scalars[kWeightOffset].value.f)};
    return LaunchLayer<T, true>(rows, args->stream);
  });
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "cuda.norm.layer.residual",
     .operation = "norm.layer.residual",
     .platform = Platform::kCuda,
     .dtypes = kF32F16BF16,
     .constraints = kLayerCudaConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 60,
     .deterministic = true,
     .cuda_graph_safe = true,
     .launch = &Launch},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
