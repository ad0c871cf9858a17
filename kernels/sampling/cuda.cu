// Sampling under top-k, top-p (nucleus), min-p, and top-k then top-p on CUDA, without a sort.
//   logits [..., vocab] f32|f16|bf16, dense last axis     token [...] i64
// Workspace: none. Deterministic. Safe in graph captures. The kernel is kernels/sampling/parts/sample.cu.
#include "kernels/sampling/common/sample_cuda.h"
#include "kernels/spec.h"
#include "ops/sampling/minp.h"
#include "ops/sampling/topk.h"
#include "ops/sampling/topk_topp.h"
#include "ops/sampling/topp.h"

namespace lz::sampler {
namespace {

template <const Contract& kContract>
int32_t Launch(const lz_kernel_args* args) {
  static constexpr SampleIndices kIndices(kContract);
  return LaunchSample(kIndices, args);
}

// Strict mode asks for an error where a row has no distribution: nobody waits for the device to see one.
constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"vocab", Rel::kLe, kMostElements},
    {"policy.strict_mode", Rel::kEq, 0},
});
// One block has a whole row there, which is slower than torch's expressions if there are few rows.
constexpr auto kWithoutClusters = std::to_array<Constraint>({{"device.sm", Rel::kLt, kFirstSmWithClusters}});
constexpr auto kPreferences = std::to_array<Preference>({{.when = kWithoutClusters, .priority = kNotYetMeasured}});

constexpr SpecFields kFields = {.constraints = kConstraints, .accepts = kAcceptsAll, .preferences = kPreferences};
constexpr std::array kFamily = {
    CudaSpec("cuda.sampling.minp", &Launch<ops::sampling_minp::kContract>, kFields),
    CudaSpec("cuda.sampling.topk", &Launch<ops::sampling_topk::kContract>, kFields),
    CudaSpec("cuda.sampling.topk_topp", &Launch<ops::sampling_topk_topp::kContract>, kFields),
    CudaSpec("cuda.sampling.topp", &Launch<ops::sampling_topp::kContract>, kFields),
};
}  // namespace
}  // namespace lz::sampler
LZ_KERNEL_FAMILY = lz::sampler::kFamily;
