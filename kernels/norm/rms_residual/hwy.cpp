// Residual addition and RMSNorm of the rounded sum over the last axis, CPU SIMD: one pass adds, one scales.
//   input, residual      [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight               [hidden]       dtype of input, optional
//   output, residual_out [..., hidden]  dtype of input; output may alias input, residual_out may alias residual
// Workspace: none. Deterministic. Source: own; formula from arXiv:1910.07467 eq. 4. FP32 sums in 2 x lanes parts.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/rms_residual/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/norm/call.h"
#include "kernels/norm/rms_row.h"
#include "kernels/norm/spec.h"
#include "ops/norm/rms_residual.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::norm_rms_residual;

// sum[i] = x[i] + r[i] rounded to T; returns the sum of squares of the rounded values.
template <class T>
HWY_INLINE float AddRow(const T* x, const T* r, T* sum, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto v = LoadTwo(d, x + i), u = LoadTwo(d, r + i);
    StoreTwo(d, hn::Add(v.a, u.a), hn::Add(v.b, u.b), sum + i);
    const auto [a, b] = LoadTwo(d, sum + i);
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
  }
  for (; i < n; i += lanes) {
    const size_t rest = size_t(HWY_MIN(n - i, lanes));
    StoreF32N(d, hn::Add(LoadF32N(d, x + i, rest), LoadF32N(d, r + i, rest)), sum + i, rest);
    const auto a = LoadF32N(d, sum + i, rest);
    s0 = hn::MulAdd(a, a, s0);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const NormCall<T> call(args, {kInput, kWeight, kOutput, kEps, kWeightOffset});
  const Rows<const T> residual = RowsOf<const T>(args->tensors[kResidual]);
  const Rows<T> sums = RowsOf<T>(args->tensors[kResidualOut]);
  return call.ForRows([&](const T* x, T* out, int64_t r) {
    T* sum = sums.data + sums.offsets[r];
    const float squares = AddRow(x, residual.data + residual.offsets[r], sum, call.hidden);
    NormRow(sum, call.weight, out, call.hidden, squares, call.eps, call.offset);
  });
}
LZ_LAUNCH_BY_FLOAT(kInput);

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
LZ_HWY_KERNEL(RmsSpec("hwy.norm.rms.residual", &LaunchBest));
#endif
