// int8 values with one given scale (activations with calibrated scales), CPU SIMD.
//   input [..., k] f32|f16|bf16, dense last axis    scale [] or [1, ...] f32|f16|bf16    values [..., k] i8, dense
// Workspace: none. Deterministic, bitwise equal to the reference: one division, rounded to nearest even. Source: own.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/scaled/hwy_int8.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>
#include <cmath>

#include "core/kernel.h"
#include "core/view.h"
#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "kernels/spec.h"
#include "ops/quantize/scaled.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::quantize_scaled;

template <class T>
void Row(const T* x, float scale, int64_t k, int8_t* out) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto s = hn::Set(d, scale), top = hn::Set(d, 127.0f);
  int64_t i = 0;
  for (; i + lanes <= k; i += lanes) {
    const auto q = hn::Div(LoadF32(d, x + i), s);
    const auto number = hn::IfThenElseZero(hn::Eq(q, q), q);  // NaN becomes 0
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(hn::Clamp(number, hn::Neg(top), top))), d8, out + i);
  }
  for (; i < k; ++i) {
    const float q = ToFloat(x[i]) / scale;
    out[i] = int8_t(std::isnan(q) ? 0.0f : std::nearbyint(std::clamp(q, -127.0f, 127.0f)));
  }
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor &input = args->tensors[kInput], &values = args->tensors[kValues];
  const int64_t k = input.shape[input.ndim - 1];
  const float scale = float(View(args->tensors[kScale]).Load(0));
  const RowOffsets from(input), to(values);
  // 64k values take about 10 us on one core: less does not pay for waking another thread.
  ParallelFor(args, NumRows(input), 65536 / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) Row(Data<const T>(input) + from[r], scale, k, Data<int8_t>(values) + to[r]);
  });
  return 0;
}

LZ_LAUNCH_BY_FLOAT(kInput);

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

constexpr auto kConstraints = std::to_array<Constraint>({
    {"format", Rel::kEq, ops::kInt8, {}, ReasonCode::kQuantFormatUnsupported},
    {"scale.given", Rel::kEq, 1, {}, ReasonCode::kQuantScalesRequired},
    {"scale.one_element", Rel::kEq, 1, {}, ReasonCode::kQuantGranularity},
});
constexpr std::array<std::string_view, 1> kAccepts = {"scale"};
constexpr std::array kFamily = {CpuSpec("hwy.quantize.int8", &LaunchBest,
                                        {.operation = "quantize", .constraints = kConstraints, .accepts = kAccepts})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
