// The specification that most CPU kernels share.
#pragma once

#include "core/kernel.h"

namespace lz {

// A kernel of f32, f16 and bf16 with the last axis dense, deterministic. id: "<provider>.<operation>".
constexpr KernelSpec CpuSpec(std::string_view id, lz_launch_fn launch, std::span<const std::string_view> accepts = {},
                             std::span<const Constraint> constraints = {}, lz_workspace_fn workspace = nullptr,
                             NumericsClass numerics = {}) {
  return {.id = id,
          .operation = id.substr(id.find('.') + 1),
          .dtypes = kF32F16BF16,
          .constraints = constraints,
          .accepts = accepts,
          .strides = Strides::kLastDimDense,
          .priority = 80,
          .deterministic = true,
          .numerics = numerics,
          .launch = launch,
          .workspace = workspace};
}

}  // namespace lz

// The end of a Highway file with one kernel, whose function is Launch in each target: its specification, which names
// &LaunchBest.
#define LZ_HWY_KERNEL(...)                      \
  namespace lz {                                \
  namespace {                                   \
  LZ_HWY_EXPORT(Launch);                        \
  constexpr std::array kFamily = {__VA_ARGS__}; \
  }                                             \
  }                                             \
  LZ_KERNEL_FAMILY = lz::kFamily
