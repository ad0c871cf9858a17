// Sampling under top-k, CPU SIMD: no sort, a threshold found by partitions (kernels/sampling/common/select.h).
//   logits [..., vocab] f32|f16|bf16, dense last axis     token [...] i64
// Workspace: 36 bytes a vocabulary entry for each row that runs at once. Deterministic. Source: own; definition in
// ops/sampling/topk.h. FP32 weights, sums in FP64 over blocks of 1024.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/topk/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/sampling/common/sample_rows.h"
#include "kernels/sampling/common/sample_spec.h"
#include "ops/sampling/topk.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
int32_t Launch(const lz_kernel_args* args) { return sampler::LaunchSample(ops::sampling_topk::kContract, args); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Launch);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }

constexpr std::array kFamily = {SampleSpec("hwy.sampling.topk", "sampling.topk", &LaunchBest)};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
