// Merging attention over disjoint sets of keys on CUDA: some lanes of a warp take a row, each 8 elements of it at a
// time; the weights of the parts come from two passes over their lse, or their row max and row sum. Where there are few
// rows of many parts, the lanes of a block take columns of one row together, each group of them some parts.
#pragma once

#include "kernels/cuda_types.h"

namespace lz::attention {

// Parts one stride apart; strides in elements. T: float, __half or __nv_bfloat16.
template <class T>
struct MergeSide {
  const T* v;      // [parts, n, h, d], last dim dense
  const float* s;  // [parts, n, h]: lse, or row max where there is `sum`
  const float* sum;
  int64_t v_part, v_n, v_h, s_part, s_n, s_h, sum_part, sum_n, sum_h;
};

template <class T, class Out>
struct MergeProblem {
  MergeSide<T> side[2];  // with kTwo a part is a side, else the parts are those of side[0]
  const void* sinks = nullptr;
  DType sinks_type = DType::kF32;
  int64_t sinks_stride = 0;
  const float* shift = nullptr;  // [n, h], dense: what the logits of the parts must be lowered by
  Out* out = nullptr;            // [b, n, h, d]
  int64_t out_b = 0, out_n = 0, out_h = 0;
  float* lse = nullptr;  // [b, n, h], may be absent
  int64_t lse_b = 0, lse_n = 0, lse_h = 0;
  int32_t parts = 0, h = 0, d = 0, n = INT32_MAX;
  int64_t rows = 0;  // b * n * h; parts count b and n as one axis
};

template <class T>
MergeSide<T> MergeSideOf(const lz_tensor& v, const lz_tensor& s) {
  MergeSide<T> side = {.v = Data<const T>(v), .s = Data<const float>(s)};
  side.v_n = v.strides[v.ndim - 3], side.v_h = v.strides[v.ndim - 2];
  side.s_n = s.strides[s.ndim - 2], side.s_h = s.strides[s.ndim - 1];
  if (v.ndim == 4) side.v_part = v.strides[0], side.s_part = s.strides[0];
  return side;
}

#ifdef __CUDACC__
inline constexpr int kMergeThreads = 128;

__device__ inline float Exp(float v) { return expf(v); }
__device__ inline double Exp(double v) { return exp(v); }
__device__ inline float Log(float v) { return logf(v); }
__device__ inline double Log(double v) { return log(v); }
template <class Out, class A>
__device__ Out Rounded(A v) {
  if constexpr (std::is_same_v<Out, double>) {
    return v;
  } else {
    return FromFloat<Out>(float(v));
  }
}

// Sums of exp(logit - top) that become one row's output. A is float, or double where the output is.
template <class A>
struct MergeScale {
  A top;         // the weight of a part is exp(its logit - top) / total
  A total;       // 0: nothing is seen
  bool nothing;  // the output is 0 whatever the values are
  A lse;
};
// `top` and `sum` of the parts, sum = sum of exp(logit - top) in units of `top`.
template <class A>
__device__ MergeScale<A> ScaleOf(A top, A sum, bool sunk, A sink) {
  const A none = -A(HUGE_VALF);
  const A base = top == none ? A(0) : top;
  MergeScale<A> r = {base, sum, sum == 0, sum == 0 ? none : top + Log(sum)};
  if (!sunk || r.nothing) return r;
  if (sink == A(HUGE_VALF) && r.lse < A(HUGE_VALF) && r.lse > none) {
    r.nothing = true;
    return r;
  }
  r.top = sink > base ? sink : base;
  r.total = sum * Exp(base - r.top) + Exp(sink - r.top);
  return r;
}

// Lanes [0, kLanes) of a row take kN elements at a time each. kSpread: a block has kLanes * kN columns of a row.
template <class T, class Out, int kN, int kLanes, bool kTwo, bool kSpread>
__global__ void __launch_bounds__(kMergeThreads) Merge(const MergeProblem<T, Out> p) {
  using A = std::conditional_t<std::is_same_v<Out, double>, double, float>;
  constexpr int kGroups = kMergeThreads / kLanes;
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  int64_t row = kSpread ? blockIdx.x : int64_t(blockIdx.x) * kGroups + group;
  const bool live = row < p.rows;
  row = live ? row : p.rows - 1;  // its lanes take part in shuffles
  const int h = int(row % p.h);
  const int64_t n = row / p.h, b = n / p.n, i = n % p.n;
  const MergeSide<T>&first = p.side[0], &second = p.side[1];
  const auto logit = [&](int t) {
    if (kTwo && t == 1) return second.s[n * second.s_n + h * second.s_h];
    return first.s[t * first.s_part + n * first.s_n + h * first.s_h];
  };
  const auto values = [&](int t) {
    if (kTwo && t == 1) return second.v + n * second.v_n + h * second.v_h;
    return first.v + t * first.v_part + n * first.v_n + h * first.v_h;
  };
  constexpr int kSharing = kSpread ? kWarp : kLanes;  // lanes of a warp with the same row
  const int parts = kTwo ? 2 : p.parts, mine = threadIdx.x % kSharing;
  A top = -A(HUGE_VALF), sum = 0;
  for (int t = mine; t < parts; t += kSharing) top = fmax(top, A(logit(t)));  // NaN shows in the sum
#pragma unroll
  for (int step = kSharing / 2; step > 0; step /= 2) top = fmax(top, __shfl_xor_sync(0xffffffffu, top, step));
  const A base = top == -A(HUGE_VALF) ? A(0) : top;
  for (int t = mine; t < parts; t += kSharing) {
    const float s = logit(t);
    if (s == -HUGE_VALF) continue;
    const A unit = first.sum ? A(first.sum[t * first.sum_part + n * first.sum_n + h * first.sum_h]) : A(1);
    sum += Exp(A(s) - base) * unit;
  }
#pragma unroll
  for (int step = kSharing / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const A shift = p.shift ? A(p.shift[row]) : A(0);
  const A sink = p.sinks ? A(LoadFloat(p.sinks, h * p.sinks_stride, p.sinks_type)) + shift : A(0);
  const MergeScale<A> scale = ScaleOf<A>(top, sum, p.sinks != nullptr, sink);
  if (live && lane == 0 && (!kSpread || (group == 0 && blockIdx.y == 0)) && p.lse) {
    p.lse[b * p.lse_b + i * p.lse_n + h * p.lse_h] = float(scale.lse - shift);
  }
  const A share = A(1) / scale.total;
  for (int from = kSpread ? int(blockIdx.y) * kLanes * kN : 0; from < p.d; from += kSpread ? p.d : kLanes * kN) {
    const int at = from + lane * kN;
    A acc[kN] = {};
    if (!scale.nothing && at < p.d) {
#pragma unroll 4
      for (int t = kSpread ? group : 0; t < parts; t += kSpread ? kGroups : 1) {
        const float s = logit(t);
        Vector<T, kN> v = {};
        if (s != -HUGE_VALF) v = *reinterpret_cast<const Vector<T, kN>*>(values(t) + at);
        const A weight = s == -HUGE_VALF ? A(0) : Exp(A(s) - scale.top) * share;
#pragma unroll
        for (int j = 0; j < kN; ++j) acc[j] += weight * A(ToFloat(v.v[j]));
      }
    }
    if constexpr (kSpread) {
      __shared__ A sums[kGroups][kLanes * kN];
#pragma unroll
      for (int j = 0; j < kN; ++j) sums[group][lane * kN + j] = acc[j];
      __syncthreads();
      if (group != 0) continue;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        for (int g = 1; g < kGroups; ++g) acc[j] += sums[g][lane * kN + j];
      }
    }
    if (at >= p.d || !live) continue;
    Vector<Out, kN> out;
#pragma unroll
    for (int j = 0; j < kN; ++j) out.v[j] = Rounded<Out>(acc[j]);
    *reinterpret_cast<Vector<Out, kN>*>(p.out + b * p.out_b + i * p.out_n + h * p.out_h + at) = out;
  }
}

template <class T, class Out, int kN, int kLanes, bool kTwo, bool kSpread = false>
int32_t LaunchMergeOf(const MergeProblem<T, Out>& p, void* stream) {
  constexpr int64_t kRowsOfBlock = kSpread ? 1 : kMergeThreads / kLanes;
  const int64_t blocks = (p.rows + kRowsOfBlock - 1) / kRowsOfBlock;
  if (blocks > 0x7fffffff) return CudaCode(cudaErrorInvalidValue);
  const int64_t across = kSpread && p.d > 0 ? (p.d + kLanes * kN - 1) / (kLanes * kN) : 1;
  const dim3 grid{unsigned(blocks), unsigned(across)};
  Merge<T, Out, kN, kLanes, kTwo, kSpread><<<grid, kMergeThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}

// Whether rows are read and written 8 elements at a time.
template <class T, class Out>
bool WideRows(const MergeProblem<T, Out>& p, int sides) {
  constexpr int64_t kN = 8;
  bool wide = p.d % kN == 0 && p.out_b % kN == 0 && p.out_n % kN == 0 && p.out_h % kN == 0 && Aligned(p.out);
  for (int i = 0; i < sides; ++i) {
    const MergeSide<T>& s = p.side[i];
    wide = wide && Aligned(s.v) && s.v_part % kN == 0 && s.v_n % kN == 0 && s.v_h % kN == 0;
  }
  return wide;
}

template <bool kTwo, class T, class Out>
int32_t LaunchMerge(const MergeProblem<T, Out>& p, void* stream) {
  if (p.rows == 0) return LZ_LAUNCH_DONE;
  if (!WideRows(p, kTwo ? 2 : 1)) return LaunchMergeOf<T, Out, 1, 32, kTwo>(p, stream);
  if constexpr (!kTwo) {
    constexpr int64_t kFewRows = 1024;  // less than what fills a large device
    if (p.parts > 2 && p.rows <= kFewRows && p.d <= kMaxGridY)
      return LaunchMergeOf<T, Out, 8, 16, kTwo, true>(p, stream);
  }
  if (p.d <= 64) return LaunchMergeOf<T, Out, 8, 8, kTwo>(p, stream);
  if (p.d <= 128) return LaunchMergeOf<T, Out, 8, 16, kTwo>(p, stream);
  return LaunchMergeOf<T, Out, 8, 32, kTwo>(p, stream);
}
#endif  // __CUDACC__

}  // namespace lz::attention
