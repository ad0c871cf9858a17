// Sampling under min-p, CPU SIMD: no sort, a threshold found by partitions (kernels/sampling/common/select.h).
//   logits [..., vocab] f32|f16|bf16, dense last axis     token [...] i64
// Workspace: 36 bytes a vocabulary entry for each row that runs at once. Deterministic. Source: own; definition in
// ops/sampling/minp.h. FP32 weights, sums in FP64 over blocks of 1024.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/minp/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/sampling/common/sample_rows.h"
#include "ops/sampling/minp.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops::sampling_minp;

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

int32_t Launch(const lz_kernel_args* args) {
  return sampler::LaunchSample(
      args,
      {.temperature = args->scalars[kTemperature].value.f, .k = kAll, .p = 1.0, .min_p = args->scalars[kMinP].value.f},
      args->scalars[kSeed].value.i, args->scalars[kOffset].value.i);
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

uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor& logits = args->tensors[0];
  return RowsWorkspaceBytes(args, NumRows(logits), logits.shape[logits.ndim - 1]);
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"vocab", Rel::kLe, 0x7fffffff - 64},  // indices of candidates are 32 bits wide
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.sampling.minp",
     .operation = "sampling.minp",
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest,
     .workspace = &Workspace,
     .expected_us_fixed = 30},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
