// silu of the first half of each row times its second half on CUDA, one pass.
//   input  [..., 2 n]  f32|f16|bf16, rows dense, leading strides free
//   output [..., n]    dtype of input; must not overlap input
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formula from arXiv:2002.05202 eq. 5.
#include "kernels/activation/gated_cuda.h"
#include "kernels/spec.h"
#include "ops/activation/silu_and_mul.h"

namespace lz {
namespace {
using namespace lz::ops::activation_silu_and_mul;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor& x = args->tensors[kInput];
  return WithCudaFloat(DTypeOf(x), [&](auto t) {
    using T = decltype(t);
    const int64_t n = x.shape[x.ndim - 1] / 2;
    const DeviceRows rows(x);
    const GatedRows<T> halves = {.gate = Data<const T>(x),
                                 .up = Data<const T>(x) + n,
                                 .out = Data<T>(args->tensors[kOutput]),
                                 .gate_rows = rows,
                                 .up_rows = rows,
                                 .rows = NumRows(x),
                                 .n = n};
    const Times<ActivationOf<ops::activation::kSilu>> f;
    return LaunchGated<GatedForm::kTwo>(halves, f, f, args->stream);
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {CudaSpec("cuda.activation.silu_and_mul", &Launch, {.constraints = kConstraints})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
