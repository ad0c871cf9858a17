// Sampling under top-k, top-p (nucleus), min-p, and top-k then top-p, CPU SIMD: no sort, thresholds found by partitions
// (kernels/sampling/common/select.h).
//   logits [..., vocab] f32|f16|bf16, dense last axis     token [...] i64
// Workspace: 36 bytes a vocabulary entry for each row that runs at once. Deterministic. Source: own; definitions in
// ops/sampling/. FP32 weights, sums in FP64 over blocks of 1024.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/sampling/common/sample_rows.h"
#include "kernels/sampling/common/sample_spec.h"
#include "ops/sampling/minp.h"
#include "ops/sampling/topk.h"
#include "ops/sampling/topk_topp.h"
#include "ops/sampling/topp.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
int32_t MinP(const lz_kernel_args* args) { return sampler::LaunchSample(ops::sampling_minp::kContract, args); }
int32_t TopK(const lz_kernel_args* args) { return sampler::LaunchSample(ops::sampling_topk::kContract, args); }
int32_t TopKTopP(const lz_kernel_args* args) { return sampler::LaunchSample(ops::sampling_topk_topp::kContract, args); }
int32_t TopP(const lz_kernel_args* args) { return sampler::LaunchSample(ops::sampling_topp::kContract, args); }
}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(MinP);
LZ_HWY_EXPORT(TopK);
LZ_HWY_EXPORT(TopKTopP);
LZ_HWY_EXPORT(TopP);

constexpr auto kFamily = std::to_array<KernelSpec>({
    SampleSpec("hwy.sampling.minp", &MinPBest),
    SampleSpec("hwy.sampling.topk", &TopKBest),
    SampleSpec("hwy.sampling.topk_topp", &TopKTopPBest),
    SampleSpec("hwy.sampling.topp", &TopPBest),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
