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

// A row's functions: kRun(problem, args), and the memory of the parts that kCut(problem) makes.
template <MakeCudaProblem kMake, auto kRun>
int32_t LaunchWith(const lz_kernel_args* args) {
  return kRun(kMake(args), args);
}
template <MakeCudaProblem kMake, auto kCut>
uint64_t WorkspaceOf(const lz_kernel_args* args) {
  const CudaProblem p = kMake(args);
  return PartBytes(p, kCut(p));
}
inline CudaCut CutOfGroups(const CudaProblem&) { return kCutOfGroups; }

// Few rows in FP32, by dot products; the rows of `constraints` name the dtypes of keys and values.
template <MakeCudaProblem kMake>
constexpr KernelSpec FewSpec(std::string_view id, std::string_view operation, int32_t priority,
                             std::span<const Constraint> constraints,
                             std::span<const std::string_view> accepts = kAcceptsAll,
                             std::span<const Preference> preferences = {}) {
  return CudaSpec(id, &LaunchWith<kMake, &RunFew>,
                  {.operation = operation,
                   .constraints = constraints,
                   .accepts = accepts,
                   .priority = priority,
                   .preferences = preferences,
                   .numerics = "fp32",
                   .workspace = &WorkspaceOf<kMake, &CutOfFew>});
}
// Tiles of rows in FP32. Not measured: before torch's products of matrices in expressions, after what else it has.
inline constexpr int32_t kFloatTiles = kBeforeExpressions - 1;
template <MakeCudaProblem kMake>
constexpr KernelSpec FloatTileSpec(std::string_view id, std::string_view operation,
                                   std::span<const Constraint> constraints,
                                   std::span<const std::string_view> accepts = kAcceptsAll) {
  KernelSpec spec = FewSpec<kMake>(id, operation, kFloatTiles, constraints, accepts);
  spec.dtypes = Mask(DType::kF32);
  spec.launch = &LaunchWith<kMake, &RunFloatTiles>;
  spec.workspace = &WorkspaceOf<kMake, &CutOfFloatTiles>;
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
  spec.launch = &LaunchWith<kMake, &RunTiles>;
  spec.workspace = &WorkspaceOf<kMake, &CutOfTiles>;
  return spec;
}
// The same by products of warpgroups; `constraints` are those of tiles.
template <MakeCudaProblem kMake, size_t kN>
constexpr KernelSpec GroupSpec(std::string_view id, std::string_view operation, int32_t priority,
                               const std::array<Constraint, kN>& constraints,
                               std::span<const std::string_view> accepts = kAcceptsAll,
                               std::span<const Preference> preferences = {}) {
  KernelSpec spec = TileSpec<kMake>(id, operation, priority, constraints, accepts, preferences);
  spec.launch = &LaunchWith<kMake, &RunGroups>;
  spec.workspace = &WorkspaceOf<kMake, &CutOfGroups>;
  return spec;
}

// What the kernels ask of every call that has one head dimension for queries and keys, of at most kMost columns.
template <int64_t kMost = kMostHeadDim, size_t kN>
constexpr auto WithHeadDims(const Constraint (&more)[kN]) {
  return Joined(std::to_array<Constraint>({
                    kOnCompiledSm,
                    kOnDriver,
                    {"d_qk", Rel::kMultipleOf, 8},
                    {"d_v", Rel::kMultipleOf, 8},
                    {"d_qk", Rel::kLe, kMost},
                    {"d_v", Rel::kLe, kMost},
                }),
                more);
}
// Of tiles over dense keys and values.
inline constexpr auto kDenseTiles = WithHeadDims<kMostWideHeadDim>({
    {"key.same_dtype", Rel::kEq, 1},
    {"value.same_dtype", Rel::kEq, 1},
    {"query.alignment", Rel::kGe, 4},
    {"key.alignment", Rel::kGe, 4},
    {"value.alignment", Rel::kGe, 4},
    {"s_kv", Rel::kLe, kMostKeys},
});

// Heads of more than kMostHeadDim columns have a kernel of their own (wide_kernel_cuda.h), which no device has
// measured: expected to be faster than expressions, which write logits to memory or gather pages, and ranked before
// those alone.
inline constexpr auto kWideHeads = std::to_array<Constraint>({{"d_qk / 257 + d_v / 257", Rel::kGe, 1}});
inline constexpr Preference kWideBeforeExpressions = {.when = kWideHeads, .priority = kBeforeExpressions};
inline constexpr auto kWidePreferences = std::to_array<Preference>({kWideBeforeExpressions});
inline constexpr auto kWideBeforeGathers =
    std::to_array<Preference>({{.when = kWideHeads, .priority = kBeforeGathers}});

// What kernels of warpgroups ask: that of tiles, and heads of fewer columns.
inline constexpr auto kWarpgroupSms = std::to_array<int64_t>({LZ_CUDA_WARPGROUP_SM});
template <size_t kN>
constexpr auto ForGroups(std::array<Constraint, kN> tiles) {
  for (Constraint& c : tiles) {
    if (c.rel == Rel::kLe && (c.field == "d_qk" || c.field == "d_v")) c.operand = kMostHeadDim;
  }
  return Joined(tiles,
                {{.field = "device.sm", .rel = Rel::kInSet, .set = kWarpgroupSms, .code = ReasonCode::kNotBuilt}});
}

// A NaN of a value that a row does not see may reach it, where rows of a tile differ in what they see.
inline constexpr Constraint kNotStrict = {"policy.strict_mode", Rel::kEq, 0};

}  // namespace lz::attention
