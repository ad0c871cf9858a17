// One token a row from logits under top-k, top-p and min-p on CUDA: what the rows of the sample_* operations share; the
// kernel is kernels/sampling/parts/sample.cu.
#pragma once

#include "kernels/cuda.h"
#include "kernels/sampling/common/block_cuda.h"

namespace lz::sampler {

// Where an operation has its arguments: indices of scalars and tensors, -1 where it has none.
struct SampleIndices {
  int k = -1, p = -1, min_p = -1, temperature, seed, offset;
  int row_k = -1, row_p = -1, row_min_p = -1, row_temperature, uniform, token;
};
int32_t LaunchSample(const SampleIndices& arguments, const lz_kernel_args* args);

// Strict mode asks for an error where a row has no distribution: nobody waits for the device to see one.
inline constexpr auto kCudaSampleConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"vocab", Rel::kLe, kMostElements},
    {"policy.strict_mode", Rel::kEq, 0},
});
// One block has a whole row there, which is slower than torch's expressions if there are few rows.
inline constexpr auto kWithoutClusters = std::to_array<Constraint>({{"device.sm", Rel::kLt, kFirstSmWithClusters}});
inline constexpr auto kCudaSamplePreferences =
    std::to_array<Preference>({{.when = kWithoutClusters, .priority = kNotYetMeasured}});

constexpr KernelSpec CudaSampleSpec(std::string_view id, std::string_view operation, lz_launch_fn launch) {
  return {.id = id,
          .operation = operation,
          .platform = Platform::kCuda,
          .dtypes = kF32F16BF16,
          .constraints = kCudaSampleConstraints,
          .accepts = kAcceptsAll,
          .strides = Strides::kLastDimDense,
          .priority = 80,
          .preferences = kCudaSamplePreferences,
          .deterministic = true,
          .cuda_graph_safe = true,
          .launch = launch};
}

}  // namespace lz::sampler
