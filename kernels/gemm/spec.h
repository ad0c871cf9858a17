// The specification that the CPU kernels of matrix products share.
#pragma once

#include "core/kernel.h"

namespace lz {

// A deterministic kernel that takes every optional argument of its operation.
constexpr KernelSpec GemmSpec(std::string_view id, std::string_view operation, DTypeMask dtypes, int32_t priority,
                              lz_launch_fn launch, std::span<const Constraint> constraints = {},
                              lz_workspace_fn workspace = nullptr, Strides strides = Strides::kLastDimDense) {
  return {.id = id,
          .operation = operation,
          .dtypes = dtypes,
          .constraints = constraints,
          .accepts = kAcceptsAll,
          .strides = strides,
          .priority = priority,
          .deterministic = true,
          .launch = launch,
          .workspace = workspace};
}

}  // namespace lz
