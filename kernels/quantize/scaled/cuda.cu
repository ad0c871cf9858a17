// quantize on CUDA.
//   input  [..., k]  f32|f16|bf16, rows dense     values [..., k] or [..., k / 2]  codes, contiguous
//   given: every format under scales of any shape that the contract takes, zero points, tensor scales; one pass.
//   rows, groups: int8, int4, FP8, MXFP8 and MXFP4 with scales of the first axis or of groups of the last one, which
//   are computed; contiguous input, one pass where a run fits its lanes' registers.
// Workspace: none. Deterministic, to the bit of the definition. Safe in graph captures. Source: own.
#include "kernels/quantize/given_cuda.h"
#include "kernels/quantize/made_cuda.h"
#include "kernels/spec.h"
#include "ops/quantize/scaled.h"

namespace lz {
namespace {
using namespace lz::ops::quantize_scaled;

int32_t LaunchScaled(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_tensor& x = t[kInput];
  const int64_t format = args->scalars[kDtype].value.i;
  const ops::QuantShape shape = ops::QuantShape::Of(x, 1);
  const int64_t axis = args->scalars[kAxis].given ? args->scalars[kAxis].value.i : -1;
  GivenScales a = {.x = Data<void>(x),
                   .x_rows = DeviceRows(x),
                   .values = Data<uint8_t>(t[kValues]),
                   .rows = NumRows(x),
                   .k = x.shape[x.ndim - 1],
                   .scale = ScaleMap(t[kScale], shape, axis),
                   .range = RangeOf(format, Given(t[kZeroPoint]))};
  if (Given(t[kZeroPoint])) a.zero_point = ScaleMap(t[kZeroPoint], shape, axis);
  if (Given(t[kTensorScale])) a.tensor_scale = ScaleMap(t[kTensorScale], shape, -1);
  return WithCudaFloat(DTypeOf(x), [&](auto v) { return LaunchGiven<decltype(v)>(a, KindOf(format), args->stream); });
}

int32_t LaunchMade(const lz_kernel_args* args, int64_t runs) {
  const lz_tensor& x = args->tensors[kInput];
  const int64_t format = args->scalars[kDtype].value.i, count = NumElements(x);
  const MadeScales a = {.x = Data<void>(x),
                        .values = Data<uint8_t>(args->tensors[kValues]),
                        .scale = Data<void>(args->tensors[kScaleOut]),
                        .runs = runs,
                        .length = runs > 0 ? count / runs : 0,
                        .format = format,
                        .floor = args->scalars[kScaleRule].value.i != 0,
                        .range = RangeOf(format, false)};
  return WithCudaFloat(DTypeOf(x), [&](auto v) { return LaunchRuns<decltype(v)>(a, KindOf(format), args->stream); });
}
int32_t LaunchRows(const lz_kernel_args* args) { return LaunchMade(args, args->tensors[kInput].shape[0]); }
int32_t LaunchGroups(const lz_kernel_args* args) { return LaunchMade(args, NumElements(args->tensors[kScaleOut])); }

constexpr auto kMade = std::to_array<int64_t>({ops::kInt8, ops::kInt4, ops::kFP8E4M3, ops::kFP8E5M2});
constexpr auto kBytes = std::to_array<int64_t>({ops::kInt8, ops::kFP8E4M3, ops::kFP8E5M2});
constexpr auto kPowers = std::to_array<int64_t>({ops::kMXFP8E4M3, ops::kMXFP8E5M2, ops::kMXFP4});
constexpr auto kGivenRows = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"scale.given", Rel::kEq, 1, {}, ReasonCode::kQuantScalesRequired},
});
constexpr auto kFirstAxis = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {.field = "format", .rel = Rel::kInSet, .set = kMade, .code = ReasonCode::kQuantFormatUnsupported},
    {"axis.given", Rel::kEq, 1, {}, ReasonCode::kQuantGranularity},
    {"axis", Rel::kEq, 0, {}, ReasonCode::kQuantGranularity},
    {"input.ndim", Rel::kGe, 2},  // no byte of two runs
});
constexpr auto kGroups = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {.field = "format", .rel = Rel::kInSet, .set = kBytes, .code = ReasonCode::kQuantFormatUnsupported},
    {"group_size", Rel::kGe, 1, {}, ReasonCode::kQuantGranularity},
    {"block_rows", Rel::kEq, 1, {}, ReasonCode::kQuantGranularity},
});
constexpr auto kNibbleGroups = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"format", Rel::kEq, ops::kInt4, {}, ReasonCode::kQuantFormatUnsupported},
    {"group_size", Rel::kGe, 1, {}, ReasonCode::kQuantGranularity},
    {"group_size", Rel::kMultipleOf, 2, {}, ReasonCode::kQuantGranularity},  // no byte of two groups
    {"block_rows", Rel::kEq, 1, {}, ReasonCode::kQuantGranularity},
});
constexpr auto kPowerGroups = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {.field = "format", .rel = Rel::kInSet, .set = kPowers, .code = ReasonCode::kQuantFormatUnsupported},
});
constexpr auto kGivenAccepts = std::to_array<std::string_view>({"scale", "axis", "zero_point", "tensor_scale"});
constexpr auto kRowAccepts = std::to_array<std::string_view>({"axis"});
constexpr auto kGroupAccepts = std::to_array<std::string_view>({"group_size", "block_rows"});
constexpr auto kPowerAccepts = std::to_array<std::string_view>({"group_size", "scale_rule"});

constexpr KernelSpec Row(std::string_view id, std::span<const Constraint> constraints,
                         std::span<const std::string_view> accepts, lz_launch_fn launch) {
  return CudaSpec(
      id, launch,
      {.operation = "quantize", .constraints = constraints, .accepts = accepts, .strides = Strides::kContiguous});
}
constexpr KernelSpec AnyRows(KernelSpec spec) {
  spec.strides = Strides::kLastDimDense;
  return spec;
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    AnyRows(Row("cuda.quantize.given", kGivenRows, kGivenAccepts, &LaunchScaled)),
    Row("cuda.quantize.rows", kFirstAxis, kRowAccepts, &LaunchRows),
    Row("cuda.quantize.groups", kGroups, kGroupAccepts, &LaunchGroups),
    Row("cuda.quantize.groups.int4", kNibbleGroups, kGroupAccepts, &LaunchGroups),
    Row("cuda.quantize.powers", kPowerGroups, kPowerAccepts, &LaunchGroups),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
