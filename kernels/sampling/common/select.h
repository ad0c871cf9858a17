// The value at which a descending order reaches a given count or mass, without sorting: Floyd and Rivest's selection
// (CACM 18(3), 1975, algorithm 489) with vector partitions. Include only from files that Highway compiles per target.
//   const Threshold t = SelectThreshold(d, x, nullptr, n, n, k, buffers);  // the k-th largest
//
// A round sorts a sample of 256 elements and picks two pivots that have the target element between them with a margin
// of 2.5 standard deviations. One pass sums the elements above and compresses those in between into a buffer, where the
// next round continues: 128k elements become about 10k, 1k, 100, and those are sorted. A round whose pivots missed
// continues with the part above or below; one that shrank little (many ties) uses a single pivot, which always removes
// the pivot's value. Expected time is linear.
#if defined(LZ_KERNELS_SAMPLING_COMMON_SELECT_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_SAMPLING_COMMON_SELECT_H_
#undef LZ_KERNELS_SAMPLING_COMMON_SELECT_H_
#else
#define LZ_KERNELS_SAMPLING_COMMON_SELECT_H_
#endif

#include <array>
#include <cmath>

#include "kernels/sampling/common/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::sampler {

// Keeps elements above `value`, and the first `ties` elements equal to it.
struct Threshold {
  float value = -kInf;
  int64_t ties = std::numeric_limits<int64_t>::max();
};

// Two pairs of arrays, each with room for n elements and a vector.
struct SelectBuffers {
  std::array<float*, 2> x;
  std::array<float*, 2> w;
};

// Elements and their weights; w null: every weight is 1.
struct Elements {
  const float* x;
  const float* w;
  int64_t n;
  double mass;
};

struct Parts {
  int64_t n_above = 0;
  int64_t n_mid = 0;
  double above = 0;  // mass of x > hi
  double mid = 0;    // mass of lo <= x <= hi
};

// Compresses the elements in [lo, hi] into out_x, out_w.
template <bool kWeighted>
Parts Partition(Tag d, const Elements& e, float lo, float hi, float* HWY_RESTRICT out_x, float* HWY_RESTRICT out_w) {
  const int64_t lanes = int64_t(hn::Lanes(d));
  const Vec vlo = hn::Set(d, lo), vhi = hn::Set(d, hi), zero = hn::Zero(d);
  Parts r;
  for (int64_t begin = 0; begin < e.n; begin += kBlock) {
    const int64_t end = std::min(e.n, begin + kBlock);
    Vec above = zero, mid = zero;
    for (int64_t i = begin; i < end; i += lanes) {
      // NaN past the end of the row: neither above nor between.
      const Vec x = LoadUpTo(d, e.x, i, e.n, std::numeric_limits<float>::quiet_NaN());
      const auto is_above = hn::Gt(x, vhi);
      const auto is_mid = hn::And(hn::Ge(x, vlo), hn::Le(x, vhi));
      if constexpr (kWeighted) {
        const Vec w = LoadUpTo(d, e.w, i, e.n, 0.0f);
        above = hn::Add(above, hn::IfThenElseZero(is_above, w));
        mid = hn::Add(mid, hn::IfThenElseZero(is_mid, w));
        hn::CompressStore(w, is_mid, d, out_w + r.n_mid);
      }
      r.n_above += int64_t(hn::CountTrue(d, is_above));
      r.n_mid += int64_t(hn::CompressStore(x, is_mid, d, out_x + r.n_mid));
    }
    if constexpr (kWeighted) {
      r.above += double(hn::GetLane(hn::SumOfLanes(d, above)));
      r.mid += double(hn::GetLane(hn::SumOfLanes(d, mid)));
    }
  }
  if constexpr (!kWeighted) {
    r.above = double(r.n_above);
    r.mid = double(r.n_mid);
  }
  return r;
}

struct Weighted {
  float x;
  float w;
};

constexpr int64_t kSample = 256;

// Elements first, first + step, ..., in descending order.
inline int64_t SortedSample(const Elements& e, std::array<Weighted, kSample>& sample) {
  const int64_t count = std::min(e.n, kSample);
  for (int64_t j = 0; j < count; ++j) {
    const int64_t i = j * e.n / count;
    sample[j] = {e.x[i], e.w ? e.w[i] : 1.0f};
  }
  std::sort(sample.begin(), sample.begin() + count, [](const Weighted& a, const Weighted& b) { return a.x > b.x; });
  return count;
}

struct Pivots {
  float lo;
  float hi;
};

// `target`: the mass to reach from the top of these elements. The tail is estimated, not the head: a sample represents
// the many light elements well and misses the few heavy ones.
inline Pivots ChoosePivots(const Elements& e, double target, bool single) {
  std::array<Weighted, kSample> sample;
  const int64_t count = SortedSample(e, sample);
  const double tail_target = e.mass - target, scale = double(e.n) / double(count);
  double tail = 0;
  int64_t at = count;
  while (at > 0 && tail < tail_target) tail += scale * sample[--at].w;
  if (at == count) at = count - 1;
  if (single) return {sample[at].x, sample[at].x};
  if (tail < tail_target) return {sample[0].x, kInf};
  const int64_t margin = 3 + int64_t(2.5 * std::sqrt(double(std::min(at, count - at))));
  return {at + margin < count ? sample[at + margin].x : -kInf, at - margin >= 0 ? sample[at - margin].x : kInf};
}

// The number of elements equal to the threshold, of weight w each, that reach `missing`.
inline int64_t TiesFor(double missing, float w) {
  return w > 0 ? int64_t(std::clamp(std::ceil(missing / w), 1.0, 0x1p40)) : Threshold{}.ties;
}

inline Threshold SelectSorted(const Elements& e, double target) {
  std::array<Weighted, kSample> sorted;
  const int64_t count = SortedSample(e, sorted);
  double above = 0;
  for (int64_t i = 0; i < count;) {
    int64_t end = i;
    double group = 0;
    for (; end < count && sorted[end].x == sorted[i].x; ++end) group += sorted[end].w;
    if (above + group >= target) return {sorted[i].x, TiesFor(target - above, sorted[i].w)};
    above += group;
    i = end;
  }
  return {sorted[count - 1].x};  // rounding: the total stays below the target
}

// The largest t with mass(x >= t) >= target. `mass` is the total mass (n without weights); 0 < target.
inline Threshold SelectThreshold(Tag d, const float* x, const float* w, int64_t n, double mass, double target,
                                 const SelectBuffers& buffers) {
  Elements e = {x, w, n, mass};
  bool single = false;
  const auto partition = w ? &Partition<true> : &Partition<false>;
  for (int next = 0; e.n > kSample / 2; next ^= 1) {
    const Pivots p = ChoosePivots(e, target, single);
    Parts r = partition(d, e, p.lo, p.hi, buffers.x[next], buffers.w[next]);
    const int64_t before = e.n;
    if (target <= r.above) {  // above the pivots
      const double above = r.above;
      r = partition(d, e, std::nextafter(p.hi, kInf), kInf, buffers.x[next], buffers.w[next]);
      r.mid = above;
    } else if (target <= r.above + r.mid) {
      target -= r.above;
      if (p.lo == p.hi) return {p.lo, TiesFor(target, w ? buffers.w[next][0] : 1.0f)};
    } else {                                      // below them
      if (r.n_above + r.n_mid == e.n) return {};  // rounding: the total stays below the target
      target -= r.above + r.mid;
      const double below = std::max(e.mass - r.above - r.mid, target);
      r = partition(d, e, -kInf, std::nextafter(p.lo, -kInf), buffers.x[next], buffers.w[next]);
      r.mid = below;
    }
    e = {buffers.x[next], w ? buffers.w[next] : nullptr, r.n_mid, r.mid};
    single = e.n > before / 2;
  }
  return SelectSorted(e, target);
}

}  // namespace lz::HWY_NAMESPACE::sampler
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
