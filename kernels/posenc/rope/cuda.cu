// Rotary position embedding on CUDA: a block takes the heads of one position, a thread some pairs of columns.
//   input        [b, s, h, d]              f32|f16|bf16, last axis dense, other strides free (BSHD and BHSD)
//   cos, sin     [s, w] [b, s, w] [n, w]   f32|f16|bf16, whatever input is; rows dense
//   position_ids [s] [b, s]                i32|i64, optional. The host cannot see them without waiting for the device:
//                                          heads at a position outside the tables become NaN
//   output       [b, s, h, d]              dtype of input; may alias input
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formula from arXiv:2104.09864 eq. 34.
// FP32 arithmetic, rounded once; 16-byte accesses where addresses, strides and widths allow, single elements otherwise.
#include "kernels/cuda.h"
#include "kernels/spec.h"
#include "ops/posenc/rope.h"

namespace lz {
namespace {
using namespace lz::ops::posenc_rope;

constexpr int kThreads = 256;  // of a block, at most

// Strides in elements. A table row that does not depend on the sequence or the batch has stride 0 there.
struct Heads {
  int64_t b, s, h;
};
struct Problem {
  const void *x, *cos, *sin, *ids;
  void* out;
  Heads x_stride, out_stride;
  int64_t cos_b, cos_s, sin_b, sin_s, id_b, id_s;
  int64_t positions, sequence;  // b * s, s
  int64_t table_rows;           // with ids
  int32_t heads, d, r, width;
  float sign;
  bool wide_ids;  // int64
};

// kN pairs: columns (i, i + m), or the 2 kN columns from 2 i on as neighbours.
template <class T, class U, int kN, bool kInterleaved>
__device__ void Rotate(const Problem& p, const T* x, T* out, const U* cos, const U* sin, int i) {
  const int m = p.r / 2;
  const int first = kInterleaved ? 2 * i : i, second = kInterleaved ? 2 * i + kN : m + i;
  const bool per_column = p.width == p.r;
  Vector<T, kN> a = *reinterpret_cast<const Vector<T, kN>*>(x + first);
  Vector<T, kN> b = *reinterpret_cast<const Vector<T, kN>*>(x + second);
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    // The pair's elements within (a, b), and their columns in the tables.
    T& low = kInterleaved ? (2 * j < kN ? a.v[2 * j % kN] : b.v[2 * j % kN]) : a.v[j];
    T& high = kInterleaved ? (2 * j + 1 < kN ? a.v[(2 * j + 1) % kN] : b.v[(2 * j + 1) % kN]) : b.v[j];
    const int low_at = per_column && kInterleaved ? 2 * (i + j) : i + j;
    const int high_at = !per_column ? i + j : kInterleaved ? low_at + 1 : m + i + j;
    const float v = ToFloat(low), w = ToFloat(high);
    low = FromFloat<T>(v * ToFloat(cos[low_at]) - w * (p.sign * ToFloat(sin[low_at])));
    high = FromFloat<T>(w * ToFloat(cos[high_at]) + v * (p.sign * ToFloat(sin[high_at])));
  }
  *reinterpret_cast<Vector<T, kN>*>(out + first) = a;
  *reinterpret_cast<Vector<T, kN>*>(out + second) = b;
}

template <class T, class U, int kN, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) Rope(const Problem p) {
  const int pairs = p.r / 2 / kN, rest = p.d - p.r;  // the columns after the rotated ones are copied
  const int items = pairs + (p.x == p.out ? 0 : rest);
  for (int64_t position = blockIdx.x; position < p.positions; position += gridDim.x) {
    const int64_t b = position / p.sequence, s = position % p.sequence;
    int64_t row = s;
    if (p.ids) {
      const int64_t at = b * p.id_b + s * p.id_s;
      row = p.wide_ids ? static_cast<const int64_t*>(p.ids)[at] : static_cast<const int32_t*>(p.ids)[at];
    }
    const bool outside = p.ids && (row < 0 || row >= p.table_rows);
    if (outside) row = 0;
    const U* cos = static_cast<const U*>(p.cos) + b * p.cos_b + row * p.cos_s;
    const U* sin = static_cast<const U*>(p.sin) + b * p.sin_b + row * p.sin_s;
    for (int t = threadIdx.x; t < p.heads * items; t += blockDim.x) {
      const int h = t / items, item = t % items;
      const T* x = static_cast<const T*>(p.x) + b * p.x_stride.b + s * p.x_stride.s + h * p.x_stride.h;
      T* out = static_cast<T*>(p.out) + b * p.out_stride.b + s * p.out_stride.s + h * p.out_stride.h;
      if (item >= pairs) {
        out[p.r + item - pairs] = x[p.r + item - pairs];
      } else {
        Rotate<T, U, kN, kInterleaved>(p, x, out, cos, sin, item * kN);
      }
    }
    if (!outside) continue;
    __syncthreads();
    for (int t = threadIdx.x; t < p.heads * p.d; t += blockDim.x) {
      T* out = static_cast<T*>(p.out) + b * p.out_stride.b + s * p.out_stride.s + (t / p.d) * p.out_stride.h;
      out[t % p.d] = FromFloat<T>(nanf(""));
    }
  }
}

template <class T, class U, int kN>
int32_t Run(const Problem& p, bool interleaved, cudaStream_t stream) {
  const int64_t items = int64_t(p.heads) * (p.r / 2 / kN + (p.x == p.out ? 0 : p.d - p.r));
  if (items == 0) return 0;
  const unsigned threads = unsigned(items < kThreads ? (items + kWarp - 1) / kWarp * kWarp : kThreads);
  const unsigned grid = unsigned(p.positions < int64_t{1} << 30 ? p.positions : int64_t{1} << 30);
  if (interleaved) {
    Rope<T, U, kN, true><<<grid, threads, 0, stream>>>(p);
  } else {
    Rope<T, U, kN, false><<<grid, threads, 0, stream>>>(p);
  }
  return Launched();
}

Heads StridesOf(const lz_tensor& t) { return {t.strides[kB], t.strides[kS], t.strides[kH]}; }

// Strides of a table's rows by batch and by sequence, or by id.
void TableStrides(const lz_tensor& t, bool by_id, int64_t* b, int64_t* s) {
  *b = !by_id && t.ndim == 3 && t.shape[0] != 1 ? t.strides[0] : 0;
  *s = t.strides[t.ndim - 2];
}

bool Wide(const lz_tensor& t, int64_t elements) {
  return t.strides[kB] % elements == 0 && t.strides[kS] % elements == 0 && t.strides[kH] % elements == 0;
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &cos = args->tensors[kCos], &sin = args->tensors[kSin];
  const lz_tensor &ids = args->tensors[kPositionIds], &out = args->tensors[kOutput];
  Problem p = {.x = Data<void>(x),
               .cos = Data<void>(cos),
               .sin = Data<void>(sin),
               .ids = Given(ids) ? Data<void>(ids) : nullptr,
               .out = Data<void>(out),
               .x_stride = StridesOf(x),
               .out_stride = StridesOf(out),
               .positions = x.shape[kB] * x.shape[kS],
               .sequence = x.shape[kS],
               .table_rows = cos.shape[0],
               .heads = int32_t(x.shape[kH]),
               .d = int32_t(x.shape[kD]),
               .r = int32_t(args->scalars[kRotaryDim].value.i),
               .width = int32_t(cos.shape[cos.ndim - 1]),
               .sign = args->scalars[kInverse].value.i != 0 ? -1.0f : 1.0f,
               .wide_ids = DTypeOf(ids) == DType::kI64};
  if (p.positions == 0) return 0;
  TableStrides(cos, p.ids != nullptr, &p.cos_b, &p.cos_s);
  TableStrides(sin, p.ids != nullptr, &p.sin_b, &p.sin_s);
  if (p.ids) {
    p.id_b = ids.ndim == 2 && ids.shape[0] != 1 ? ids.strides[0] : 0;
    p.id_s = ids.strides[ids.ndim - 1];
  }
  const bool interleaved = args->scalars[kInterleaved].value.i != 0;
  return WithCudaFloat(DTypeOf(x), [&](auto t) {
    using T = decltype(t);
    return WithCudaFloat(DTypeOf(cos), [&](auto u) {
      using U = decltype(u);
      constexpr int kN = kLanes<T>;
      const bool wide = p.r / 2 % kN == 0 && Wide(x, kN) && Wide(out, kN) && Aligned(p.x, p.out);
      const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
      return wide ? Run<T, U, kN>(p, interleaved, stream) : Run<T, U, 1>(p, interleaved, stream);
    });
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"cos.dtype", Rel::kInMask, kF32F16BF16},
    {"h * d", Rel::kLe, int64_t{1} << 30},
});
constexpr auto kAccepts = std::to_array<std::string_view>({"position_ids", "inverse", "rotary_dim"});
constexpr std::array kFamily = {
    CudaSpec("cuda.posenc.rope", &Launch, {.constraints = kConstraints, .accepts = kAccepts})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
