// sampling.topk_topp on CUDA: kernels/sampling/parts/sample.cu.
#include "kernels/sampling/common/sample_cuda.h"
#include "ops/sampling/topk_topp.h"

namespace lz {
namespace {
using namespace lz::ops::sampling_topk_topp;

constexpr sampler::SampleIndices kArguments = {
    .k = kK,
    .p = kP,
    .temperature = kTemperature,
    .seed = kSeed,
    .offset = kOffset,
    .row_k = kRowK,
    .row_p = kRowP,
    .row_temperature = kRowTemperature,
    .uniform = kUniform,
    .token = kToken,
};
int32_t Launch(const lz_kernel_args* args) { return sampler::LaunchSample(kArguments, args); }

constexpr auto kFamily =
    std::to_array<KernelSpec>({sampler::CudaSampleSpec("cuda.sampling.topk_topp", "sampling.topk_topp", &Launch)});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
