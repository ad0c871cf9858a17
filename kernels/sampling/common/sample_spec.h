// The spec that all sample_* kernels share, CPU SIMD.
#pragma once

#include <array>

#include "kernels/sampling/common/workspace.h"
#include "kernels/spec.h"

namespace lz {

inline uint64_t SampleWorkspace(const lz_kernel_args* args) {
  const lz_tensor& logits = args->tensors[0];
  return RowsWorkspaceBytes(args, NumRows(logits), logits.shape[logits.ndim - 1]);
}

inline constexpr auto kSampleConstraints = std::to_array<Constraint>({
    {"vocab", Rel::kLe, 0x7fffffff - 64},  // indices of candidates are 32 bits wide
});

constexpr KernelSpec SampleSpec(std::string_view id, lz_launch_fn launch) {
  return CpuSpec(id, launch,
                 {.constraints = kSampleConstraints, .accepts = kAcceptsAll, .workspace = &SampleWorkspace});
}

}  // namespace lz
