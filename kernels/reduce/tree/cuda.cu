// The fixed tree of reduce.tree on CUDA: a thread a column, a binary counter of subtrees.
//   input [n, rows, hidden]  f32|f16|bf16, last axis dense     output [rows, hidden]  any float dtype, contiguous
// Workspace: none. Deterministic: bits of the definition. Safe in graph captures. Source: own.
#include "kernels/cuda_types.h"
#include "ops/reduce/tree.h"

namespace lz {
namespace {
using namespace lz::ops::reduce_tree;

constexpr int kThreads = 256;
constexpr int kDepth = 40;  // subtrees of 2^j partials

struct Problem {
  const void* x;
  void* out;
  int64_t n, part, row;  // strides of partials and rows
  int64_t rows, hidden;
  DType type;
};

// kMost: partials at most, a tree of registers; 0: any number.
template <class T, int kMost>
__device__ float TreeSum(const T* x, int64_t n, int64_t stride) {
  if constexpr (kMost > 0) {
    float level[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) level[i] = i < n ? ToFloat(x[i * stride]) : 0.0f;
      // Neighbours are added while both are there; an odd last one moves up.
#pragma unroll
    for (int step = 1; step < kMost; step *= 2) {
#pragma unroll
      for (int i = 0; i + step < kMost; i += 2 * step) {
        if (i + step < n) level[i] += level[i + step];
      }
    }
    return level[0];
  } else {
    float stack[kDepth];
    int depth = 0;
    for (int64_t i = 0; i < n; ++i) {
      float sum = ToFloat(x[i * stride]);
      for (int64_t bits = i + 1; bits % 2 == 0; bits /= 2) sum = stack[--depth] + sum;
      stack[depth++] = sum;
    }
    for (; depth > 1; --depth) stack[depth - 2] += stack[depth - 1];
    return n > 0 ? stack[0] : 0.0f;
  }
}

template <class T, int kMost>
__global__ void __launch_bounds__(kThreads) Tree(const Problem p) {
  const int64_t count = p.rows * p.hidden;
  for (int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x; at < count; at += int64_t(gridDim.x) * kThreads) {
    const T* x = static_cast<const T*>(p.x) + at / p.hidden * p.row + at % p.hidden;
    StoreFloat(p.out, at, p.type, TreeSum<T, kMost>(x, p.n, p.part));
  }
}

template <class T, int kMost>
int32_t Run(const Problem& p, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 1 << 20;
  const int64_t blocks = (p.rows * p.hidden + kThreads - 1) / kThreads;
  Tree<T, kMost><<<unsigned(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0, stream>>>(p);
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
                     .type = DTypeOf(out)};
  if (p.rows * p.hidden == 0) return 0;
  return WithCudaFloat(DTypeOf(x), [&](auto t) {
    using T = decltype(t);
    const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
    if (p.n <= 8) return Run<T, 8>(p, stream);
    return p.n <= 32 ? Run<T, 32>(p, stream) : Run<T, 0>(p, stream);
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "cuda.reduce.tree",
     .operation = "reduce.tree",
     .platform = Platform::kCuda,
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .cuda_graph_safe = true,
     .launch = &Launch},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
