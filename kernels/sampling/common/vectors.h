// Passes over one row that the sampling kernels share: tails as full vectors, scan for the maximum, weights, block
// sums, the draw. Include only from files that Highway compiles per target (after hwy/highway.h).
#if defined(LZ_KERNELS_SAMPLING_COMMON_VECTORS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_SAMPLING_COMMON_VECTORS_H_
#undef LZ_KERNELS_SAMPLING_COMMON_VECTORS_H_
#else
#define LZ_KERNELS_SAMPLING_COMMON_VECTORS_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/simd.h"
#include "kernels/simd_math.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::sampler {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Sums use f32 lanes within a block and f64 across blocks: a sum of 256k terms is within 1e-6.
constexpr int64_t kBlock = 1024;

using Tag = hn::ScalableTag<float>;
using Vec = hn::Vec<Tag>;

// The vector at p[i..], lanes from n on filled with `fill`.
template <class T>
HWY_INLINE Vec LoadTail(Tag d, const T* p, int64_t i, int64_t n, float fill) {
  alignas(64) float lanes[hn::MaxLanes(d)];
  for (int64_t j = 0; j < int64_t(hn::Lanes(d)); ++j) lanes[j] = i + j < n ? ToFloat(p[i + j]) : fill;
  return hn::Load(d, lanes);
}
template <class T>
HWY_INLINE Vec LoadUpTo(Tag d, const T* p, int64_t i, int64_t n, float fill) {
  return HWY_LIKELY(i + int64_t(hn::Lanes(d)) <= n) ? LoadF32(d, p + i) : LoadTail(d, p, i, n, fill);
}

struct ScanResult {
  float max;  // -inf for an empty row
  bool nan;
};

// The row's maximum; writes the row as f32 to `copy` (room for whole vectors) unless it is null.
template <class T>
ScanResult ScanRow(Tag d, const T* HWY_RESTRICT x, int64_t n, float* HWY_RESTRICT copy) {
  const int64_t lanes = int64_t(hn::Lanes(d));
  Vec max0 = hn::Set(d, -kInf), max1 = max0;
  auto nan = hn::IsNaN(hn::Zero(d));
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const Vec a = LoadF32(d, x + i), b = LoadF32(d, x + i + lanes);
    if (copy) {
      hn::StoreU(a, d, copy + i);
      hn::StoreU(b, d, copy + i + lanes);
    }
    max0 = hn::Max(max0, a);
    max1 = hn::Max(max1, b);
    nan = hn::Or(nan, hn::Or(hn::IsNaN(a), hn::IsNaN(b)));
  }
  for (; i < n; i += lanes) {
    const Vec a = LoadUpTo(d, x, i, n, -kInf);
    if (copy) hn::StoreU(a, d, copy + i);
    max0 = hn::Max(max0, a);
    nan = hn::Or(nan, hn::IsNaN(a));
  }
  return {hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1))), !hn::AllFalse(d, nan)};
}

inline int64_t FindFirst(Tag d, const float* x, int64_t n, float value) {
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {
    const intptr_t at = hn::FindFirstTrue(d, hn::Eq(LoadUpTo(d, x, i, n, -kInf), hn::Set(d, value)));
    if (at >= 0) return i + at;
  }
  return -1;
}

// Sum of a block's weights; `w` has whole vectors, with zeros past the row.
HWY_INLINE double BlockSum(Tag d, const float* w, int64_t n) {
  const int64_t lanes = int64_t(hn::Lanes(d));
  Vec s0 = hn::Zero(d), s1 = s0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    s0 = hn::Add(s0, hn::LoadU(d, w + i));
    s1 = hn::Add(s1, hn::LoadU(d, w + i + lanes));
  }
  for (; i < n; i += lanes) s0 = hn::Add(s0, hn::LoadU(d, w + i));
  return double(hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1))));
}

// Fills w (whole vectors, zeros past n) with weight(i) and the blocks' sums; returns the total.
template <class Weight>
HWY_INLINE double FillWeights(Tag d, int64_t n, float* HWY_RESTRICT w, double* HWY_RESTRICT blocks, Weight&& weight) {
  const int64_t lanes = int64_t(hn::Lanes(d));
  double total = 0;
  for (int64_t begin = 0, block = 0; begin < n; begin += kBlock, ++block) {
    const int64_t end = std::min(n, begin + kBlock);
    for (int64_t i = begin; i < end; i += lanes) hn::StoreU(weight(i), d, w + i);
    total += blocks[block] = BlockSum(d, w + begin, end - begin);
  }
  return total;
}

// (x - max) / temperature. Above 1 both are made smaller first, so that no difference of finite logits is infinite; the
// factor stays within f32's normal range, so that 0 * it is 0 and -inf * it is -inf.
class Exponent {
 public:
  Exponent(float max, double temperature) : Exponent(max, temperature, temperature > 1 ? 0x1p-64 : 1) {}
  HWY_INLINE Vec operator()(Tag d, Vec x) const { return hn::Mul(hn::MulSub(x, scale_, max_), factor_); }

 private:
  Exponent(float max, double temperature, double scale)
      : scale_(hn::Set(Tag(), float(scale))),
        max_(hn::Set(Tag(), float(max * scale))),
        factor_(hn::Set(Tag(), float(std::clamp(1 / (temperature * scale), 0x1p-126, 0x1p127)))) {}

  Vec scale_, max_, factor_;
};

// w[i] = exp((x[i] - max) / temperature): the largest is exactly 1, -inf becomes 0. Returns the total.
inline double ExpWeights(Tag d, const float* HWY_RESTRICT x, int64_t n, float max, double temperature,
                         float* HWY_RESTRICT w, double* HWY_RESTRICT blocks) {
  const Exponent exponent(max, temperature);
  return FillWeights(d, n, w, blocks,
                     [&](int64_t i) HWY_ATTR { return Exp(d, exponent(d, LoadUpTo(d, x, i, n, -kInf))); });
}

// First index whose running weight exceeds u * total. The blocks' sums find the block, f64 sums the index in it.
inline int64_t Draw(const float* w, int64_t n, const double* blocks, double total, double u) {
  const double target = u * total;
  double sum = 0;
  int64_t begin = 0, last = -1;
  for (int64_t block = 0; begin < n; begin += kBlock, ++block) {
    if (sum + blocks[block] > target) break;
    if (blocks[block] > 0) last = begin;
    sum += blocks[block];
  }
  if (begin >= n) begin = std::max<int64_t>(last, 0);  // rounding: the draw is in the last block that has mass
  last = begin;
  for (int64_t i = begin; i < std::min(n, begin + kBlock); ++i) {
    if (w[i] == 0) continue;
    last = i;
    sum += w[i];
    if (sum > target) break;
  }
  return last;
}

}  // namespace lz::HWY_NAMESPACE::sampler
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
