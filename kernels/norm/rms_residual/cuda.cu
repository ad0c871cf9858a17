// Residual addition and RMSNorm of the rounded sum over the last axis on CUDA, in one pass over the rows.
//   input, residual      [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight               [hidden]       dtype of input, optional
//   output, residual_out [..., hidden]  dtype of input; output may alias input, residual_out may alias residual
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formula from arXiv:1910.07467 eq. 4.
#include "kernels/norm/rms_cuda.h"
#include "ops/norm/rms_residual.h"

namespace lz {
namespace {
using namespace lz::ops::norm_rms_residual;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &residual = args->tensors[kResidual], &w = args->tensors[kWeight];
  return WithCudaFloat(DTypeOf(x), [&](auto t) {
    using T = decltype(t);
    const RmsRows<T> rows = {.x = Data<const T>(x),
                             .residual = Data<const T>(residual),
                             .weight = Given(w) ? Data<const T>(w) : nullptr,
                             .sum = Data<T>(args->tensors[kResidualOut]),
                             .out = Data<T>(args->tensors[kOutput]),
                             .x_rows = DeviceRows(x),
                             .residual_rows = DeviceRows(residual),
                             .rows = NumRows(x),
                             .hidden = x.shape[x.ndim - 1],
                             .eps = float(args->scalars[kEps].value.f),
                             .offset = float(args->scalars[kWeightOffset].value.f)};
    return LaunchRms<T, true>(rows, args->stream);
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"weight.same_dtype", Rel::kEq, 1},
    {"hidden", Rel::kLe, int64_t{1} << 30},
});
constexpr std::array<std::string_view, 2> kAccepts = {"weight", "weight_offset"};
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "cuda.norm.rms.residual",
     .operation = "norm.rms.residual",
     .platform = Platform::kCuda,
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .accepts = kAccepts,
     .strides = Strides::kLastDimDense,
     .priority = 60,
     .deterministic = true,
     .cuda_graph_safe = true,
     .launch = &Launch},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
