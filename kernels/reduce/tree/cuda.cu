// The fixed tree of reduce.tree on CUDA: a thread has a column, or four where vectors are aligned, with a binary
// counter of subtrees, which registers hold where there are few partials.
//   input [n, rows, hidden]  f32|f16|bf16, last axis dense     output [rows, hidden]  any float dtype, contiguous
// Workspace: none. Deterministic: bits of the definition. Safe in graph captures. Source: own.
#include "kernels/cuda_types.h"
#include "kernels/spec.h"
#include "ops/reduce/tree.h"

namespace lz {
namespace {
using namespace lz::ops::reduce_tree;

constexpr int kThreads = 256;
constexpr int kColumns = 4;  // of a thread, where vectors of them are aligned
constexpr int kDepth = 40;   // subtrees of 2^j partials

struct Problem {
  const void* x;
  void* out;
  int64_t n, part, row;  // strides of partials and rows
  int64_t rows, hidden;
  DType type;
  bool same;  // the dtype of x
};

// kMost: partials at most, a tree of registers; 0: any number.
template <class T, int kWidth, int kMost>
__device__ void TreeSums(float (&sums)[kWidth], const T* x, int64_t n, int64_t stride) {
  using V = Vector<T, kWidth>;
  if constexpr (kMost > 0) {
    V loaded[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i < n) loaded[i] = *reinterpret_cast<const V*>(x + i * stride);
    }
#pragma unroll
    for (int v = 0; v < kWidth; ++v) {
      float level[kMost];
#pragma unroll
      for (int i = 0; i < kMost; ++i) level[i] = ToFloat(loaded[i].v[v]);
        // Neighbours are added while both are there; an odd last one moves up.
#pragma unroll
      for (int step = 1; step < kMost; step *= 2) {
#pragma unroll
        for (int i = 0; i + step < kMost; i += 2 * step) {
          if (i + step < n) level[i] += level[i + step];
        }
      }
      sums[v] = n > 0 ? level[0] : 0.0f;
    }
  } else {
    static_assert(kWidth == 1);
    float stack[kDepth];
    int depth = 0;
    for (int64_t i = 0; i < n; ++i) {
      float sum = ToFloat(x[i * stride]);
      for (int64_t bits = i + 1; bits % 2 == 0; bits /= 2) sum = stack[--depth] + sum;
      stack[depth++] = sum;
    }
    for (; depth > 1; --depth) stack[depth - 2] += stack[depth - 1];
    sums[0] = n > 0 ? stack[0] : 0.0f;
  }
}

template <class T, int kWidth, int kMost>
__global__ void __launch_bounds__(kThreads) Tree(const Problem p) {
  const int64_t width = p.hidden / kWidth, count = p.rows * width;
  const bool narrow = count <= 0x7fffffff;  // a division of 64 bits takes as long as a load
  for (int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x; at < count; at += int64_t(gridDim.x) * kThreads) {
    const int64_t row = narrow ? uint32_t(at) / uint32_t(width) : at / width;
    const T* x = static_cast<const T*>(p.x) + row * p.row + (at - row * width) * kWidth;
    float sums[kWidth];
    TreeSums<T, kWidth, kMost>(sums, x, p.n, p.part);
    if (kWidth > 1 && p.same) {
      Vector<T, kWidth> result;
#pragma unroll
      for (int v = 0; v < kWidth; ++v) result.v[v] = FromFloat<T>(sums[v]);
      *reinterpret_cast<Vector<T, kWidth>*>(static_cast<T*>(p.out) + at * kWidth) = result;
    } else {
#pragma unroll
      for (int v = 0; v < kWidth; ++v) StoreFloat(p.out, at * kWidth + v, p.type, sums[v]);
    }
  }
}

template <class T, int kWidth, int kMost>
int32_t Run(const Problem& p, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 1 << 20;
  const int64_t blocks = (p.rows * (p.hidden / kWidth) + kThreads - 1) / kThreads;
  Tree<T, kWidth, kMost><<<unsigned(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0, stream>>>(p);
  return Launched();
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &out = args->tensors[kOutput];
  const Problem p = {.x = Data<void>(x),
                     .out = Data<void>(out),
                     .n = x.shape[0],
                     .part = x.strides[0],
                     .row = x.strides[1],
                     .rows = out.shape[0],
                     .hidden = out.shape[1],
                     .type = DTypeOf(out),
                     .same = DTypeOf(out) == DTypeOf(x)};
  if (p.rows * p.hidden == 0) return 0;
  return WithCudaFloat(DTypeOf(x), [&](auto t) {
    using T = decltype(t);
    const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
    const bool wide = (p.part | p.row | p.hidden) % kColumns == 0 && Aligned(p.x, p.out);
    if (p.n <= 8) return wide ? Run<T, kColumns, 8>(p, stream) : Run<T, 1, 8>(p, stream);
    return p.n <= 32 ? Run<T, 1, 32>(p, stream) : Run<T, 1, 0>(p, stream);
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {
    CudaSpec("cuda.reduce.tree", &Launch, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
