// The spec that all sample_* kernels share, CPU SIMD.
#pragma once

#include <array>

#include "core/kernel.h"
#include "kernels/sampling/common/workspace.h"

namespace lz {

inline uint64_t SampleWorkspace(const lz_kernel_args* args) {
  const lz_tensor& logits = args->tensors[0];
  return RowsWorkspaceBytes(args, NumRows(logits), logits.shape[logits.ndim - 1]);
}

inline constexpr auto kSampleConstraints = std::to_array<Constraint>({
    {"vocab", Rel::kLe, 0x7fffffff - 64},  // indices of candidates are 32 bits wide
});

constexpr KernelSpec SampleSpec(std::string_view id, std::string_view operation, lz_launch_fn launch) {
  return {.id = id,
          .operation = operation,
          .dtypes = kF32F16BF16,
          .constraints = kSampleConstraints,
          .accepts = kAcceptsAll,
          .strides = Strides::kLastDimDense,
          .priority = 80,
          .deterministic = true,
          .launch = launch,
          .workspace = &SampleWorkspace};
}

}  // namespace lz
