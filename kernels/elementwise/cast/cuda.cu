// elementwise.cast on CUDA: a thread some elements of a row.
//   input [..., n]  f32|f16|bf16, rows dense     output [..., n]  any of them or f64, contiguous
// Workspace: none. Deterministic. Safe in graph captures. Source: own; definition in ops/elementwise/cast.h.
#include "kernels/cuda.h"
#include "kernels/spec.h"
#include "ops/elementwise/cast.h"

namespace lz {
namespace {
using namespace lz::ops::elementwise_cast;

constexpr int kThreads = 256;

struct Problem {
  const void* x;
  void* out;
  DeviceRows rows;
  int64_t count, n;
};

template <class To>
__device__ To Converted(float v) {
  if constexpr (std::is_same_v<To, double>) {
    return v;
  } else {
    return FromFloat<To>(v);
  }
}

template <class From, class To, int kN>
__global__ void __launch_bounds__(kThreads) Cast(const Problem p) {
  const int64_t n = p.n / kN;
  for (int64_t row = blockIdx.x; row < p.count; row += gridDim.x) {
    const auto* x = reinterpret_cast<const Vector<From, kN>*>(static_cast<const From*>(p.x) + p.rows[row]);
    auto* out = reinterpret_cast<Vector<To, kN>*>(static_cast<To*>(p.out) + row * p.n);
    for (int64_t i = int64_t(blockIdx.y) * kThreads + threadIdx.x; i < n; i += int64_t(gridDim.y) * kThreads) {
      const Vector<From, kN> from = x[i];
      Vector<To, kN> to;
#pragma unroll
      for (int j = 0; j < kN; ++j) to.v[j] = Converted<To>(ToFloat(from.v[j]));
      out[i] = to;
    }
  }
}

template <class From, class To, int kN>
int32_t Run(const Problem& p, void* stream) {
  constexpr int64_t kMaxRows = int64_t{1} << 30;
  const int64_t chunks = (p.n / kN + kThreads - 1) / kThreads;
  const dim3 grid(unsigned(p.count < kMaxRows ? p.count : kMaxRows), unsigned(chunks < kMaxGridY ? chunks : kMaxGridY));
  Cast<From, To, kN><<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}

template <class From, class To>
int32_t Run(Problem p, void* stream) {
  if (p.rows.Dense(p.n)) {
    p.n *= p.count;
    p.count = 1;
    p.rows = DeviceRows();
  }
  constexpr int kN = sizeof(From) + sizeof(To) == 4 ? 8 : 4;
  const bool wide = Aligned(p.x, p.out) && p.n % kN == 0 && p.rows.Aligned(kN);
  return wide ? Run<From, To, kN>(p, stream) : Run<From, To, 1>(p, stream);
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &out = args->tensors[kOutput];
  const Problem p = {.x = Data<void>(x),
                     .out = Data<void>(out),
                     .rows = DeviceRows(x),
                     .count = NumRows(x),
                     .n = x.ndim > 0 ? x.shape[x.ndim - 1] : 1};
  if (p.count == 0 || p.n == 0) return 0;
  return WithCudaFloat(DTypeOf(x), [&](auto from) {
    using From = decltype(from);
    if (DTypeOf(out) == DType::kF64) return Run<From, double>(p, args->stream);
    return WithCudaFloat(DTypeOf(out), [&](auto to) { return Run<From, decltype(to)>(p, args->stream); });
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {
    CudaSpec("cuda.elementwise.cast", &Launch, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
