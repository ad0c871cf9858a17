// RMSNorm over the last axis on CUDA.
//   input  [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight [hidden]       dtype of input, optional
//   output [..., hidden]  dtype of input; may alias input
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formula from arXiv:1910.07467 eq. 4.
#include "kernels/norm/rms_cuda.h"
#include "ops/norm/rms.h"

namespace lz {
namespace {
using namespace lz::ops::norm_rms;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &w = args->tensors[kWeight];
  return WithCudaFloat(DTypeOf(x), [&](auto t) {
    using T = decltype(t);
    const RmsRows<T> rows = {.x = Data<const T>(x),
                             .weight = Given(w) ? Data<const T>(w) : nullptr,
                             .out = Data<T>(args->tensors[kOutput]),
                             .x_rows = DeviceRows(x),
                             .rows = NumRows(x),
                             .hidden = x.shape[x.ndim - 1],
                             .eps = float(args->scalars[kEps].value.f),
                             .offset = float(args->scalars[kWeightOffset].value.f)};
    return LaunchRms<T, false>(rows, args->stream);
  });
}

// With this many rows or more, torch's kernel is faster where it serves the call (1.15 x at 4096 rows of 4096 on an
// H100).
constexpr int64_t kManyRows = 1024;

constexpr auto kFewRows = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"weight.same_dtype", Rel::kEq, 1},
    {"hidden", Rel::kLe, int64_t{1} << 30},
    {"rows", Rel::kLt, kManyRows},
});
constexpr auto kAnyRows = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"weight.same_dtype", Rel::kEq, 1},
    {"hidden", Rel::kLe, int64_t{1} << 30},
});
constexpr std::array<std::string_view, 2> kAccepts = {"weight", "weight_offset"};

constexpr KernelSpec Spec(std::string_view id, std::span<const Constraint> constraints, int32_t priority) {
  return {.id = id,
          .operation = "norm.rms",
          .platform = Platform::kCuda,
          .dtypes = kF32F16BF16,
          .constraints = constraints,
          .accepts = kAccepts,
          .strides = Strides::kLastDimDense,
          .priority = priority,
          .deterministic = true,
          .cuda_graph_safe = true,
          .launch = &Launch};
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("cuda.norm.rms", kFewRows, 60),
    Spec("cuda.norm.rms.many", kAnyRows, 5),  // below torch.rms_norm: one kernel, two ranks
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
