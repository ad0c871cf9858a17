// RMSNorm over the last axis, CPU SIMD: one pass for the sum of squares, one for the scaling (a row is in L1 by then).
//   input  [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight [hidden]       dtype of input, optional
//   output [..., hidden]  dtype of input; may alias input
// Workspace: none. Deterministic. Source: own; formula from arXiv:1910.07467 eq. 4. FP32 sums in 4 x lanes parts.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/rms/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/cpu_spec.h"
#include "kernels/launch.h"
#include "kernels/norm/rms_row.h"
#include "kernels/simd.h"
#include "ops/norm/rms.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::norm_rms;

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor& x = args->tensors[kInput];
  const lz_tensor& w = args->tensors[kWeight];
  const lz_tensor& out = args->tensors[kOutput];
  const int64_t hidden = x.shape[x.ndim - 1];
  const T* px = Data<const T>(x);
  const T* pw = Given(w) ? Data<const T>(w) : nullptr;
  T* pout = Data<T>(out);
  const float eps = float(args->scalars[kEps].value.f), offset = float(args->scalars[kWeightOffset].value.f);
  const RowOffsets x_row(x), out_row(out);
  // 16k elements take about 2 us on one core: less does not pay for waking another thread.
  ParallelFor(args, NumRows(x), 16384 / (hidden + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) RmsRow(px + x_row[r], pw, pout + out_row[r], hidden, eps, offset);
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
    {"weight.same_dtype", Rel::kEq, 1},
});
constexpr std::array<std::string_view, 2> kAccepts = {"weight", "weight_offset"};
constexpr std::array kFamily = {CpuSpec("hwy.norm.rms", &LaunchBest, kAccepts, kConstraints)};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
