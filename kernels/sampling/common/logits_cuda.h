// A row of logits on CUDA, or a block's share of it, as floats, 16 bytes at a time: one block's loads must hide the
// latency of memory.
#pragma once

#include "kernels/sampling/common/block_cuda.h"

namespace lz::sampler {

#ifdef __CUDACC__
// one(i) and vector(i, v), of 16 bytes that begin at element i, for a share of the elements [first, last) of x: that of
// `lane` among `lanes`. kBatch vectors are on their way at once.
template <int kBatch, class T, class One, class Many>
__device__ void EachVector(const T* x, int first, int last, int lane, int lanes, One one, Many vector) {
  constexpr int kN = kLanes<T>;
  using V = Vector<T, kN>;
  const auto beyond = int(reinterpret_cast<uintptr_t>(x + first) % kVectorBytes);
  int begin = first + (beyond == 0 ? 0 : (kVectorBytes - beyond) / int(sizeof(T)));
  if (begin > last) begin = last;
  const int end = begin + (last - begin) / kN * kN, step = lanes * kN;
#pragma unroll 1
  for (int i = first + lane; i < begin; i += lanes) one(i);
#pragma unroll 1
  for (int i = end + lane; i < last; i += lanes) one(i);
#pragma unroll 1
  for (int i = begin + lane * kN; i < end; i += kBatch * step) {
    V v[kBatch] = {};  // without a value, those past the end would be kept from one row to the next
#pragma unroll
    for (int h = 0; h < kBatch; ++h) {
      if (i + h * step < end) v[h] = *reinterpret_cast<const V*>(x + i + h * step);
    }
#pragma unroll
    for (int h = 0; h < kBatch; ++h) {
      if (i + h * step >= end) break;
      vector(i + h * step, v[h]);
    }
  }
}

// Of a row with infinite logits these become 0 and all others -inf. kShared: they are in shared memory.
template <class T, bool kShared>
struct Logits {
  static constexpr int kBatch = kShared ? 1 : kLanes<T> > 4 ? 2 : 4;
  const T* x;
  bool infinite;

  __device__ float Value(T raw) const {
    const float v = ToFloat(raw) + 0.0f;  // one zero
    return !infinite ? v : v == kInfinity ? 0.0f : -kInfinity;
  }
  __device__ float operator()(int i) const { return Value(x[i]); }

  // body(value) for a share of the elements [first, last): that of `lane` among `lanes`.
  template <class Body>
  __device__ void Each(int first, int last, int lane, int lanes, Body body) const {
    EachVector<kBatch>(
        x, first, last, lane, lanes, [&](int i) { body((*this)(i)); },
        [&](int, const Vector<T, kLanes<T>>& v) {
#pragma unroll
          for (int j = 0; j < kLanes<T>; ++j) body(Value(v.v[j]));
        });
  }

  // The same of the block's n elements, while they are copied to `to`, which has their distance from a multiple of 16.
  template <class Body>
  __device__ void EachCopied(int n, T* to, Body body) const {
    EachVector<4>(
        x, 0, n, int(threadIdx.x), int(blockDim.x),
        [&](int i) {
          to[i] = x[i];
          body((*this)(i));
        },
        [&](int i, const Vector<T, kLanes<T>>& v) {
          *reinterpret_cast<Vector<T, kLanes<T>>*>(to + i) = v;
#pragma unroll
          for (int j = 0; j < kLanes<T>; ++j) body(Value(v.v[j]));
        });
  }
};

// Where in the block's memory, a multiple of 16, a copy of the elements from x on begins.
template <class T>
__device__ T* CopyOf(const T* x, void* memory) {
  return reinterpret_cast<T*>(static_cast<char*>(memory) + reinterpret_cast<uintptr_t>(x) % kVectorBytes);
}
#endif  // __CUDACC__

}  // namespace lz::sampler
