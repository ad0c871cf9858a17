// Softmax with a temperature, CPU SIMD: a pass for the maximum, one for the exponentials and their sum, one to scale.
//   logits [..., vocab] f32|f16|bf16, dense last axis     probs [..., vocab] f32, dense last axis; may alias f32 logits
// Workspace: none. Deterministic. Source: own; definition in ops/sampling/softmax.h. Terms in FP32, FP64 sums
// over blocks.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/softmax/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <atomic>

#include "core/view.h"
#include "hwy/highway.h"
#include "kernels/rows.h"
#include "kernels/sampling/common/vectors.h"
#include "kernels/sampling/common/workspace.h"
#include "kernels/spec.h"
#include "ops/sampling/softmax.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::sampling_softmax;

void StoreUpTo(sampler::Tag d, sampler::Vec v, float* p, int64_t i, int64_t n) {
  if (HWY_LIKELY(i + int64_t(hn::Lanes(d)) <= n)) return hn::StoreU(v, d, p + i);
  StoreF32N(d, v, p + i, size_t(n - i));
}

// The largest element; any element if the row has a NaN.
template <class T>
float MaxOf(const T* x, int64_t n) {
  const sampler::Tag d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto m0 = hn::Set(d, -sampler::kInf), m1 = m0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto v = LoadTwo(d, x + i);
    m0 = hn::Max(m0, v.a);
    m1 = hn::Max(m1, v.b);
  }
  for (; i < n; i += lanes) m0 = hn::Max(m0, sampler::LoadUpTo(d, x, i, n, -sampler::kInf));
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(m0, m1)));
}

// A NaN, an inf or the lack of a finite element makes a weight NaN, and so the sum and the whole row.
template <class T>
void Row(const T* x, float* out, int64_t n, double temperature) {
  const sampler::Tag d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto weight = [exponent = sampler::Exponent(MaxOf(x, n), temperature)](auto d, auto v)
                          HWY_ATTR { return Exp(d, exponent(d, v)); };
  double total = 0;
  for (int64_t i = 0; i < n;) {
    const int64_t end = std::min(n, i + sampler::kBlock);
    auto s0 = hn::Zero(d), s1 = s0;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      const auto a = weight(d, LoadF32(d, x + i)), b = weight(d, LoadF32(d, x + i + lanes));
      hn::StoreU(a, d, out + i);
      hn::StoreU(b, d, out + i + lanes);
      s0 = hn::Add(s0, a);
      s1 = hn::Add(s1, b);
    }
    for (; i < end; i += lanes) {
      const auto a = weight(d, sampler::LoadUpTo(d, x, i, end, -sampler::kInf));
      StoreUpTo(d, a, out, i, end);
      s0 = hn::Add(s0, a);
    }
    total += double(hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1))));
  }
  const float factor = float(1.0 / total);
  MapRow(
      out, n, [factor](auto d, auto v) HWY_ATTR { return hn::Mul(v, hn::Set(d, factor)); }, out);
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor &logits = args->tensors[kLogits], &probs = args->tensors[kProbs];
  const int64_t n = logits.shape[logits.ndim - 1];
  const T* x = Data<const T>(logits);
  float* out = Data<float>(probs);
  const lz_tensor& rows = args->tensors[kRowTemperature];
  std::atomic<bool> valid = true;
  // 8k elements take about 4 us on one core: less does not pay for waking another thread.
  ParallelFor(args, NumRows(logits), 8192 / (n + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const double temperature =
          Given(rows) ? View(rows).Load(StridedOffset(rows, r, rows.ndim)) : args->scalars[kTemperature].value.f;
      if (!sampling::IsTemperature(temperature)) return valid.store(false, std::memory_order_relaxed);
      Row(x + StridedOffset(logits, r, logits.ndim - 1), out + StridedOffset(probs, r, probs.ndim - 1), n, temperature);
    }
  });
  return valid ? LZ_LAUNCH_DONE : LZ_LAUNCH_INVALID_DATA;
}

LZ_LAUNCH_BY_FLOAT(kLogits);

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
LZ_HWY_KERNEL(CpuSpec("hwy.sampling.softmax", &LaunchBest, {.accepts = kAcceptsAll}));
#endif
