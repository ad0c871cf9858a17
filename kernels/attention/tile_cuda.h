// The parts of a tile of attention on CUDA: what is in shared memory, and the products of a warp.
#pragma once

#include "kernels/attention/logits_cuda.h"
#include "kernels/cuda_copy.h"
#include "kernels/cuda_shared.h"
#include "kernels/mma_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

inline constexpr int kChunk = 8;  // elements of 16 bytes; rows in shared memory are longer by one: no bank conflicts

// kDQ columns of keys, those from kMore on of a tensor of their own; kDV of values, kKeys at once. kBands: of 16 rows,
// of a warp, which reads each key from shared memory once for all of them. kHalves: warps that share 16 rows. kLatent:
// the first kDV columns of keys are the values.
template <int kColumnsQ, int kFirstOfMore, int kColumnsV, int kKeysAtOnce, int kBandsOfWarp, int kWarpsOfRow,
          bool kValuesAreKeys>
struct TileShape {
  static constexpr int kDQ = kColumnsQ, kMore = kFirstOfMore, kDV = kColumnsV, kKeys = kKeysAtOnce;
  static constexpr int kBands = kBandsOfWarp, kHalves = kWarpsOfRow, kRowsOfWarp = 16 * kBands, kRows = 4 * kRowsOfWarp;
  static constexpr bool kLatent = kValuesAreKeys;
  static constexpr int kThreads = 4 * kWarp * kHalves;
  static constexpr int kWidthQ = kDQ + kChunk, kWidthV = kDV + kChunk;
  static constexpr int kQ = kRows * kWidthQ, kK = kKeys * kWidthQ, kV = kLatent ? 0 : kKeys * kWidthV;  // elements
  static constexpr int kWidthS = kKeys + 4;
  static constexpr int kLogits = kHalves > 1 ? kRows* kWidthS : 0;
  static constexpr int kBytes = 2 * (kQ + 2 * (kK + kV)) + 4 * kLogits;
  static constexpr int kOfWarp = kKeys / kHalves;  // keys whose logits a warp computes
  static constexpr int kColumns = kDV / kHalves;   // of the output, for a warp
  static_assert(kOfWarp % 16 == 0 && kDQ % 16 == 0 && kDV / kHalves % 16 == 0);
};

// Rows of a tile of keys to shared memory. `more`: columns from kDV on are of a second tensor.
template <class T, int kColumns, int kSplitAt, int kKeys, int kThreads>
__device__ void CopyKeys(T* to, const KeySpot* spots, const CudaRows& rows, const CudaRows& more, int kv, int width,
                         int more_width) {
  constexpr int kChunks = kColumns / kChunk;
  for (int i = threadIdx.x; i < kKeys * kChunks; i += kThreads) {
    const int key = i / kChunks, column = i % kChunks * kChunk;
    const KeySpot spot = spots[key];
    const bool second = column >= kSplitAt;
    const int at = second ? column - kSplitAt : column;
    const CudaRows& r = second ? more : rows;
    const bool there = spot.page >= 0 && at < (second ? more_width : width);
    const T* from = static_cast<const T*>(r.data) + (spot.page * r.outer + spot.slot * r.seq + kv * r.head + at);
    CopyAsync16(to + key * (kColumns + kChunk) + column, there ? from : static_cast<const T*>(rows.data),
                there ? 16 : 0);
  }
}

// The queries of a tile, zeros where there is none.
template <class T, class S>
__device__ void CopyQueries(T* shared_q, const CudaProblem& p, const CudaQueries& queries, int b, int kv,
                            int64_t row0) {
  for (int i = threadIdx.x; i < S::kRows * (S::kDQ / kChunk); i += S::kThreads) {
    const int r = i / (S::kDQ / kChunk), column = i % (S::kDQ / kChunk) * kChunk;
    const bool second = column >= S::kMore;
    const int at = second ? column - S::kMore : column, width = second ? p.d_more : p.d_qk - p.d_more;
    const CudaRows& q = second ? p.q_more : p.q;
    const int64_t row = row0 + r;
    const bool there = row < int64_t(queries.count) * p.group && at < width;
    const CudaRow of = {.index = IndexOf(p, row), .head = kv * p.group + HeadOf(p, row)};
    const T* from = static_cast<const T*>(q.data) + Offset(q, p, queries, of, b) + at;
    CopyAsync16(shared_q + r * S::kWidthQ + column, there ? from : static_cast<const T*>(p.q.data), there ? 16 : 0);
  }
}

// Dot products of a warp's rows and a tile's keys; of 16 rows lane l has l / 4 and l / 4 + 8, of 8 keys those from
// 2 (l % 4) on.
template <class S>
using Logits = float[S::kBands][S::kKeys / 8][4];
template <class T, class S>
__device__ void MultiplyKeys(Logits<S>& z, const T* shared_q, const T* k, float* shared_z, int warp, int half,
                             int lane) {
  const int first = half * S::kOfWarp;
#pragma unroll
  for (int d = 0; d < S::kDQ; d += 16) {
    uint32_t a[S::kBands][4];
#pragma unroll
    for (int m = 0; m < S::kBands; ++m) {
      LoadMatrices<false>(a[m],
                          shared_q + (warp * S::kRowsOfWarp + m * 16 + lane % 16) * S::kWidthQ + d + lane / 16 * 8);
    }
#pragma unroll
    for (int n = 0; n < S::kOfWarp / 16; ++n) {
      uint32_t b[4];
      LoadMatrices<false>(b, k + (first + n * 16 + lane / 16 * 8 + lane % 8) * S::kWidthQ + d + lane / 8 % 2 * 8);
#pragma unroll
      for (int m = 0; m < S::kBands; ++m) {
        Multiply<T>(z[m][2 * n], a[m], b[0], b[1]);
        Multiply<T>(z[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
  if constexpr (S::kHalves > 1) {  // each warp of a row has the logits of some keys: all need all
    static_assert(S::kBands == 1);
    float* mine = shared_z + (warp * 16 + lane / 4) * S::kWidthS + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < S::kOfWarp / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) mine[i / 2 * 8 * S::kWidthS + first + n * 8 + i % 2] = z[0][n][i];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) z[0][n][i] = mine[i / 2 * 8 * S::kWidthS + n * 8 + i % 2];
    }
  }
}

// Adds weights times values, for the columns of the warp.
template <class T, class S>
__device__ void MultiplyValues(float (&out)[S::kBands][S::kColumns / 8][4], const Logits<S>& z, const T* v, int half,
                               int lane) {
#pragma unroll
  for (int s = 0; s < S::kKeys / 16; ++s) {
    uint32_t a[S::kBands][4];
#pragma unroll
    for (int m = 0; m < S::kBands; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[m][i] = PackPair<T>(z[m][2 * s + i / 2][i % 2 * 2], z[m][2 * s + i / 2][i % 2 * 2 + 1]);
    }
#pragma unroll
    for (int n = 0; n < S::kColumns / 16; ++n) {
      uint32_t b[4];
      LoadMatrices<true>(b, v + (s * 16 + lane % 16) * (S::kLatent ? S::kWidthQ : S::kWidthV) + half * S::kColumns +
                                n * 16 + lane / 16 * 8);
#pragma unroll
      for (int m = 0; m < S::kBands; ++m) {
        Multiply<T>(out[m][2 * n], a[m], b[0], b[1]);
        Multiply<T>(out[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Of four lanes each has four words of 16 rows; then lane t has the t'th word of each, in the order of the lanes.
__device__ inline void TransposeInFours(uint32_t (&words)[4]) {
#pragma unroll
  for (int apart = 1; apart <= 2; apart *= 2) {
    const bool is_later = threadIdx.x & apart;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & apart) continue;
      const uint32_t got = __shfl_xor_sync(0xffffffffu, is_later ? words[i] : words[i + apart], apart);
      words[i] = is_later ? got : words[i];
      words[i + apart] = is_later ? words[i + apart] : got;
    }
  }
}
// Writes a warp's 16 rows: their columns from `first` on, and with the first of them the lse.
template <class T, int kColumns>
__device__ void WriteBand(const CudaProblem& p, const CudaQueries& queries, const CudaRow (&rows)[2], int b, int split,
                          const float (&out)[kColumns / 8][4], const float (&top)[2], const float (&sum)[2], int first,
                          float unit) {
  const int t = threadIdx.x % 4;
  const bool is_aligned = (uint64_t(p.out.data) | uint64_t(p.out.outer | p.out.seq | p.out.head) * sizeof(T)) % 16 == 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float all = sum[i] + __shfl_xor_sync(0xffffffffu, sum[i], 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    const RowResult r = ResultOf(p, queries, rows[i], b, split, top[i], all);
    const bool is_live = rows[i].live;
    if (is_live && t == 0 && first == 0) WriteLse(p, queries, rows[i], b, split, r);
    const float share = r.share * unit;
    const auto value = [&](int n, int of) { return r.nothing ? 0.0f : out[n][2 * i + of] * share; };
    if (p.part) {
      float* const to = p.part + r.part * p.d_v;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int column = first + n * 8 + 2 * t;
        if (is_live && column < p.d_v) *reinterpret_cast<float2*>(to + column) = make_float2(value(n, 0), value(n, 1));
      }
      continue;
    }
    T* const to = static_cast<T*>(const_cast<void*>(p.out.data)) + r.at;
#pragma unroll
    for (int n = 0; n < kColumns / 8; n += 4) {
      uint32_t words[4];
#pragma unroll
      for (int more = 0; more < 4; ++more) words[more] = PackPair<T>(value(n + more, 0), value(n + more, 1));
      TransposeInFours(words);  // 8 columns in a row
      const int column = first + (n + t) * 8;
      if (!is_live || column >= p.d_v) continue;
      if (is_aligned) {
        *reinterpret_cast<uint4*>(to + column) = make_uint4(words[0], words[1], words[2], words[3]);
      } else {
#pragma unroll
        for (int word = 0; word < 4; ++word) reinterpret_cast<uint32_t*>(to + column)[word] = words[word];
      }
    }
  }
}

// Blocks of a call: one for each tile of rows, split of its keys and KV head.
__host__ __device__ inline int64_t BlocksOf(const CudaProblem& p, int64_t rows) {
  return TilesOf(p, rows) * p.splits * p.h_kv;
}
// Launches them, but at most `most`.
template <auto kKernel, class S>
int32_t LaunchBlocks(const CudaProblem& p, void* stream, int64_t most = INT32_MAX) {
  const int64_t blocks = BlocksOf(p, S::kRows);
  if (blocks > INT32_MAX) return CudaCode(cudaErrorInvalidValue);
  if (!HasShared<kKernel>(S::kBytes)) return LZ_LAUNCH_REFUSED;
  kKernel<<<unsigned(blocks < most ? blocks : most), S::kThreads, S::kBytes, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}

}  // namespace lz::attention
#endif  // __CUDACC__
