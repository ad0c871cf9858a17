// Rows of attention kernels on CUDA: a file has the problem of its operation and what the operation's calls must be.
#pragma once

#include <string_view>

#include "kernels/attention/splits_cuda.h"
#include "kernels/joined.h"
#include "kernels/spec.h"

namespace lz::attention {

// Priorities by bench/gpu/no_harm --kernels on an H200, where torch's rows have: 50 its own choice and packed
// attention, 44 to 46 FlashAttention with an option, 40 expressions with gathered pages, 30 matmul, softmax, matmul.
inline constexpr int32_t kBest = 80, kBeforeGathers = 60, kAfterTorchsChoice = 49, kAfterFlash = 43,
                         kBeforeExpressions = 35;
// Of warpgroups, by bench/gpu/attention_rows.py on an H200: before all rows of torch where neither cuDNN nor its lse
// serves the call; vLLM's FlashAttention 3 is before them, dense and packed.
inline constexpr int32_t kBeforeFlash = 47, kAfterCudnnsLse = 45, kBestOfPacked = 82;

using MakeCudaProblem = CudaProblem (*)(const lz_kernel_args*);

template <MakeCudaProblem kMake>
int32_t LaunchFew(const lz_kernel_args* args) {
  return RunFew(kMake(args), args);
}
template <MakeCudaProblem kMake>
uint64_t FewWorkspace(const lz_kernel_args* args) {
  const CudaProblem p = kMake(args);
  return PartBytes(p, CutOfFew(p));
}
template <MakeCudaProblem kMake>
int32_t LaunchFloatTiles(const lz_kernel_args* args) {
  return RunFloatTiles(kMake(args), args);
}
template <MakeCudaProblem kMake>
uint64_t FloatTileWorkspace(const lz_kernel_args* args) {
  const CudaProblem p = kMake(args);
  return PartBytes(p, CutOfFloatTiles(p));
}
template <MakeCudaProblem kMake>
int32_t LaunchTiles(const lz_kernel_args* args) {
  return RunTiles(kMake(args), args);
}
template <MakeCudaProblem kMake>
uint64_t TileWorkspace(const lz_kernel_args* args) {
  const CudaProblem p = kMake(args);
  return PartBytes(p, CutOfTiles(p));
}
template <MakeCudaProblem kMake>
int32_t LaunchGroups(const lz_kernel_args* args) {
  return RunGroups(kMake(args), args);
}
template <MakeCudaProblem kMake>
uint64_t GroupWorkspace(const lz_kernel_args* args) {
  return PartBytes(kMake(args), kCutOfGroups);
}

// Few rows in FP32, by dot products; the rows of `constraints` name the dtypes of keys and values.
template <MakeCudaProblem kMake>
constexpr KernelSpec FewSpec(std::string_view id, std::string_view operation, int32_t priority,
                             std::span<const Constraint> constraints,
                             std::span<const std::string_view> accepts = kAcceptsAll,
                             std::span<const Preference> preferences = {}) {
  return CudaSpec(id, &LaunchFew<kMake>,
                  {.operation = operation,
                   .constraints = constraints,
                   .accepts = accepts,
                   .priority = priority,
                   .preferences = preferences,
                   .numerics = "fp32",
                   .workspace = &FewWorkspace<kMake>});
}
// Tiles of rows in FP32. Not measured: before torch's products of matrices in expressions, after what else it has.
inline constexpr int32_t kFloatTiles = kBeforeExpressions - 1;
template <MakeCudaProblem kMake>
constexpr KernelSpec FloatTileSpec(std::string_view id, std::string_view operation,
                                   std::span<const Constraint> constraints,
                                   std::span<const std::string_view> accepts = kAcceptsAll) {
  KernelSpec spec = FewSpec<kMake>(id, operation, kFloatTiles, constraints, accepts);
  spec.dtypes = Mask(DType::kF32);
  spec.launch = &LaunchFloatTiles<kMake>;
  spec.workspace = &FloatTileWorkspace<kMake>;
  return spec;
}
// Tiles of rows in 16 bits, by products of matrices.
template <MakeCudaProblem kMake>
constexpr KernelSpec TileSpec(std::string_view id, std::string_view operation, int32_t priority,
                              std::span<const Constraint> constraints,
                              std::span<const std::string_view> accepts = kAcceptsAll,
                              std::span<const Preference> preferences = {}) {
  KernelSpec spec = FewSpec<kMake>(id, operation, priority, constraints, accepts, preferences);
  spec.dtypes = Mask(DType::kF16, DType::kBF16);
  spec.numerics = "bf16-p";
  spec.launch = &LaunchTiles<kMake>;
  spec.workspace = &TileWorkspace<kMake>;
  return spec;
}
// The same by products of warpgroups; `constraints` are those of tiles.
template <MakeCudaProblem kMake, size_t kN>
constexpr KernelSpec GroupSpec(std::string_view id, std::string_view operation, int32_t priority,
                               const std::array<Constraint, kN>& constraints,
                               std::span<const std::string_view> accepts = kAcceptsAll,
                               std::span<const Preference> preferences = {}) {
  KernelSpec spec = TileSpec<kMake>(id, operation, priority, constraints, accepts, preferences);
  spec.launch = &LaunchGroups<kMake>;
  spec.workspace = &GroupWorkspace<kMake>;
  return spec;
}

// What the kernels ask of every call that has one head dimension for queries and keys.
inline constexpr auto kHeadDims = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"d_qk", Rel::kMultipleOf, 8},
    {"d_v", Rel::kMultipleOf, 8},
    {"d_qk", Rel::kLe, kMostHeadDim},
    {"d_v", Rel::kLe, kMostHeadDim},
});
template <size_t kN>
constexpr auto WithHeadDims(const Constraint (&more)[kN]) {
  return Joined(kHeadDims, more);
}
// Of tiles over dense keys and values.
inline constexpr auto kDenseTiles = WithHeadDims({
    {"key.same_dtype", Rel::kEq, 1},
    {"value.same_dtype", Rel::kEq, 1},
    {"query.alignment", Rel::kGe, 4},
    {"key.alignment", Rel::kGe, 4},
    {"value.alignment", Rel::kGe, 4},
    {"s_kv", Rel::kLe, kMostKeys},
});

// What kernels of warpgroups ask besides.
inline constexpr auto kWarpgroupSms = std::to_array<int64_t>({LZ_CUDA_WARPGROUP_SM});
inline constexpr Constraint kHasWarpgroups = {
    .field = "device.sm", .rel = Rel::kInSet, .set = kWarpgroupSms, .code = ReasonCode::kNotBuilt};

// A NaN of a value that a row does not see may reach it, where rows of a tile differ in what they see.
inline constexpr Constraint kNotStrict = {"policy.strict_mode", Rel::kEq, 0};

}  // namespace lz::attention
