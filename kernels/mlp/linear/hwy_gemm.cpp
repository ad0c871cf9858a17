// Linear for any number of rows, CPU SIMD: register tiles over unpacked rows, blocked for the caches.
//   input  [..., k]  f32|bf16|f16, last dim dense     weight [n, k]  dtype of input, last dim dense
//   bias   [n]       dtype of input, optional     output [..., n]
// Workspace: none. Deterministic. Source: own. FP32 sums, one partial sum per lane and block of k.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/hwy_gemm.cpp"
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
    {"rows", Rel::kGt, linear::kGemvRows},  // fewer rows: hwy.mlp.linear.gemv
});
// One kernel with two priorities: for bf16, a CPU with bf16 dot products has a faster kernel (x86_avx512bf16.cpp).
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.mlp.linear.gemm",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kF32, DType::kF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 60,
     .deterministic = true,
     .launch = &LaunchBest},
    {.id = "hwy.mlp.linear.gemm_bf16",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kBF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 40,
     .deterministic = true,
     .launch = &LaunchBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
