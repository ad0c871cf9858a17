// Linear for one to four rows, CPU SIMD: every weight is read once, four output columns at a time.
//   input  [..., k]  f32|bf16|f16, last dim dense, at most 4 rows     weight [n, k]  dtype of input, last dim dense
//   bias   [n]       dtype of input, optional                     output [..., n]
// Workspace: none. Deterministic. Source: own. FP32 sums, one partial sum per lane (and per half of a bf16 pair).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/hwy_gemv.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/mlp/linear/blocks.h"
#include "kernels/mlp/linear/hwy_tile.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {

int32_t Launch(const lz_kernel_args* args) {
  if (NumRows(args->tensors[ops::mlp_linear::kOutput]) > linear::kGemvRows) return 1;
  WithFloatType(DTypeOf(args->tensors[ops::mlp_linear::kInput]),
                [&](auto type) { linear::RunAll<Tile<decltype(type)>, decltype(type)>(args); });
  return 0;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Launch);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }

constexpr auto kConstraints = std::to_array<Constraint>({
    {"rows", Rel::kLe, linear::kGemvRows},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.mlp.linear.gemv",
     .operation = "mlp.linear",
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
