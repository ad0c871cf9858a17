// sampling.topp on CUDA: kernels/sampling/parts/sample.cu.
#include "kernels/sampling/common/sample_cuda.h"
#include "ops/sampling/topp.h"

namespace lz {
namespace {
using namespace lz::ops::sampling_topp;

constexpr sampler::SampleIndices kArguments = {
    .p = kP,
    .temperature = kTemperature,
    .seed = kSeed,
    .offset = kOffset,
    .row_p = kRowP,
    .row_temperature = kRowTemperature,
    .uniform = kUniform,
    .token = kToken,
};
int32_t Launch(const lz_kernel_args* args) { return sampler::LaunchSample(kArguments, args); }

constexpr auto kFamily =
    std::to_array<KernelSpec>({sampler::CudaSampleSpec("cuda.sampling.topp", "sampling.topp", &Launch)});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
