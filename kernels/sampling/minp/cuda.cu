// sampling.minp on CUDA: kernels/sampling/parts/sample.cu.
#include "kernels/sampling/common/sample_cuda.h"
#include "ops/sampling/minp.h"

namespace lz {
namespace {
using namespace lz::ops::sampling_minp;

constexpr sampler::SampleIndices kArguments = {
    .min_p = kMinP,
    .temperature = kTemperature,
    .seed = kSeed,
    .offset = kOffset,
    .row_min_p = kRowMinP,
    .row_temperature = kRowTemperature,
    .uniform = kUniform,
    .token = kToken,
};
int32_t Launch(const lz_kernel_args* args) { return sampler::LaunchSample(kArguments, args); }

constexpr auto kFamily =
    std::to_array<KernelSpec>({sampler::CudaSampleSpec("cuda.sampling.minp", "sampling.minp", &Launch)});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
