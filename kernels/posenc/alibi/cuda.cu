// posenc.alibi on CUDA: a block some keys of one query and head.
//   slopes [h]  f32|f16|bf16, any stride     bias [h, s_q, s_kv]  of their dtype, contiguous
// Workspace: none. Deterministic. Safe in graph captures. Source: own. FP32, rounded once.
#include "kernels/cuda.h"
#include "kernels/spec.h"
#include "ops/posenc/alibi.h"

namespace lz {
namespace {
using namespace lz::ops::posenc_alibi;

constexpr int kThreads = 256;

struct Problem {
  const void* slopes;
  void* out;
  int64_t stride, h, s_q, s_kv;
  bool causal;
};

template <class T, int kN>
__global__ void __launch_bounds__(kThreads) Alibi(const Problem p) {
  for (int64_t row = blockIdx.x; row < p.h * p.s_q; row += gridDim.x) {
    const float slope = ToFloat(static_cast<const T*>(p.slopes)[row / p.s_q * p.stride]);
    const int64_t place = row % p.s_q + p.s_kv - p.s_q;
    auto* out = reinterpret_cast<Vector<T, kN>*>(static_cast<T*>(p.out) + row * p.s_kv);
    for (int64_t i = int64_t(blockIdx.y) * kThreads + threadIdx.x; i < p.s_kv / kN;
         i += int64_t(gridDim.y) * kThreads) {
      Vector<T, kN> v;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const int64_t distance = place - (i * kN + j);
        const float bias = -slope * float(distance < 0 ? -distance : distance);
        v.v[j] = FromFloat<T>(p.causal && distance < 0 ? -HUGE_VALF : bias);
      }
      out[i] = v;
    }
  }
}

template <class T, int kN>
int32_t Run(const Problem& p, void* stream) {
  constexpr int64_t kMaxRows = int64_t{1} << 30;
  const int64_t rows = p.h * p.s_q, chunks = (p.s_kv / kN + kThreads - 1) / kThreads;
  const dim3 grid(unsigned(rows < kMaxRows ? rows : kMaxRows), unsigned(chunks < kMaxGridY ? chunks : kMaxGridY));
  Alibi<T, kN><<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &slopes = args->tensors[kSlopes], &out = args->tensors[kBias];
  const Problem p = {.slopes = Data<void>(slopes),
                     .out = Data<void>(out),
                     .stride = slopes.strides[0],
                     .h = out.shape[0],
                     .s_q = out.shape[1],
                     .s_kv = out.shape[2],
                     .causal = args->scalars[kCausal].value.i != 0};
  if (p.h * p.s_q * p.s_kv == 0) return 0;
  return WithCudaFloat(DTypeOf(out), [&](auto t) {
    using T = decltype(t);
    const bool wide = Aligned(p.out) && p.s_kv % kLanes<T> == 0;
    return wide ? Run<T, kLanes<T>>(p, args->stream) : Run<T, 1>(p, args->stream);
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {
    CudaSpec("cuda.posenc.alibi", &Launch, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
