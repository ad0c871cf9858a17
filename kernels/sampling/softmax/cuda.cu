// Softmax with a temperature on CUDA: a block a row; one pass for the maximum and the sum, one for the results.
//   logits [..., vocab]  f32|f16|bf16, last dim dense     probs [..., vocab]  f32, last dim dense; may be f32 logits
//   row_temperature [...]  any float, any strides
// Workspace: none. Deterministic. Safe in graph captures. Source: own; definition in ops/sampling/softmax.h. FP32. A
// row of a temperature that a call on the CPU would refuse is NaN.
#include "kernels/sampling/common/logits_cuda.h"
#include "kernels/sampling/common/weights_cuda.h"
#include "ops/sampling/softmax.h"

namespace lz {
namespace {
using namespace lz::ops::sampling_softmax;
using namespace lz::sampler;

constexpr int64_t kShort = 2048;  // a row for few threads
constexpr int kShortThreads = 128;

struct SoftmaxProblem {
  const void* logits;
  float* probs;
  DeviceRows logit_rows, prob_rows;
  int64_t rows, vocab;
  RowNumber temperature;
};

// The sum of a row's weights relative to its maximum; NaN where a row has no probabilities.
struct RowSum {
  float highest, sum;
};
template <class T>
__device__ RowSum SumRow(const T* x, int64_t n, double temperature) {
  Weights weights(-kInfinity, temperature);
  float sum = 0;
  bool bad = !(temperature > 0 && temperature < HUGE_VAL);
  const Logits<T> logits = {x, false};
  logits.Each(0, n, int(threadIdx.x), int(blockDim.x), [&](float v) {
    bad |= isnan(v) || v == kInfinity;
    if (v > weights.highest) {
      const float before = weights.highest;
      weights.highest = v;
      sum = sum * weights(before) + 1;
    } else if (v > -kInfinity) {
      sum += weights(v);
    }
  });
  const float mine = weights.highest;
  weights.highest = BlockMax(mine);
  sum = BlockSum(mine > -kInfinity ? sum * weights(mine) : 0.0f);
  return {weights.highest, __syncthreads_or(bad) ? nanf("") : sum};
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) Softmax(const SoftmaxProblem p) {
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(p.logits) + p.logit_rows[row];
    float* out = p.probs + p.prob_rows[row];
    const double temperature = p.temperature(row);
    const RowSum r = SumRow(x, p.vocab, temperature);
    const Weights weights(r.highest, temperature);
    const float scale = 1.0f / r.sum;  // no finite logit: infinity, and NaN below
    const bool none = !(r.highest > -kInfinity);
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < p.vocab; i += blockDim.x) {
      out[i] = none ? nanf("") : weights(ToFloat(x[i])) * scale;
    }
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &logits = args->tensors[kLogits], &probs = args->tensors[kProbs];
  const lz_tensor& rows = args->tensors[kRowTemperature];
  const SoftmaxProblem p = {
      .logits = Data<void>(logits),
      .probs = Data<float>(probs),
      .logit_rows = DeviceRows(logits),
      .prob_rows = DeviceRows(probs),
      .rows = NumRows(logits),
      .vocab = logits.shape[logits.ndim - 1],
      .temperature = Given(rows) ? RowNumber(rows) : RowNumber(args->scalars[kTemperature].value.f)};
  if (p.rows == 0 || p.vocab == 0) return 0;
  constexpr int64_t kMaxBlocks = 1 << 16;
  const unsigned blocks = unsigned(p.rows < kMaxBlocks ? p.rows : kMaxBlocks);
  const int threads = p.vocab <= kShort ? kShortThreads : kRowThreads;
  return WithCudaFloat(DTypeOf(logits), [&](auto t) {
    Softmax<decltype(t)><<<blocks, threads, 0, static_cast<cudaStream_t>(args->stream)>>>(p);
    return Launched();
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "cuda.sampling.softmax",
     .operation = "sampling.softmax",
     .platform = Platform::kCuda,
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = kNotYetMeasured,
     .deterministic = true,
     .cuda_graph_safe = true,
     .launch = &Launch},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
