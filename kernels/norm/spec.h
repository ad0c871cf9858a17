// The specifications of the CPU norms.
#pragma once

#include "kernels/spec.h"

namespace lz {

inline constexpr auto kRmsConstraints = std::to_array<Constraint>({{"weight.same_dtype", Rel::kEq, 1}});
inline constexpr auto kRmsAccepts = std::to_array<std::string_view>({"weight", "weight_offset"});
inline constexpr auto kLayerConstraints =
    std::to_array<Constraint>({{"weight.same_dtype", Rel::kEq, 1}, {"bias.same_dtype", Rel::kEq, 1}});
inline constexpr auto kLayerAccepts = std::to_array<std::string_view>({"weight", "bias", "weight_offset"});

constexpr KernelSpec RmsSpec(std::string_view id, lz_launch_fn launch) {
  return CpuSpec(id, launch, {.constraints = kRmsConstraints, .accepts = kRmsAccepts});
}
constexpr KernelSpec LayerSpec(std::string_view id, lz_launch_fn launch) {
  return CpuSpec(id, launch, {.constraints = kLayerConstraints, .accepts = kLayerAccepts});
}

}  // namespace lz
