// The specifications of own kernels: an id, a function, and the fields in which a kernel differs from most.
#pragma once

#include "core/kernel.h"

namespace lz {

struct SpecFields {
  std::string_view operation = {};  // empty: the id without its provider
  DTypeMask dtypes = kF32F16BF16;
  std::span<const Constraint> constraints = {};
  std::span<const std::string_view> accepts = {};
  Strides strides = Strides::kLastDimDense;
  int32_t priority = 80;
  std::span<const Preference> preferences = {};
  NumericsClass numerics = {};
  lz_workspace_fn workspace = nullptr;
};

// A deterministic kernel for CPUs. id: "<provider>.<operation>", with a variant if `operation` is given.
constexpr KernelSpec CpuSpec(std::string_view id, lz_launch_fn launch, const SpecFields& fields = {}) {
  return {.id = id,
          .operation = fields.operation.empty() ? id.substr(id.find('.') + 1) : fields.operation,
          .dtypes = fields.dtypes,
          .constraints = fields.constraints,
          .accepts = fields.accepts,
          .strides = fields.strides,
          .priority = fields.priority,
          .preferences = fields.preferences,
          .deterministic = true,
          .numerics = fields.numerics,
          .launch = launch,
          .workspace = fields.workspace};
}

// A deterministic kernel for CUDA that is safe in graph captures.
constexpr KernelSpec CudaSpec(std::string_view id, lz_launch_fn launch, const SpecFields& fields) {
  KernelSpec spec = CpuSpec(id, launch, fields);
  spec.platform = Platform::kCuda;
  spec.cuda_graph_safe = true;
  return spec;
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
