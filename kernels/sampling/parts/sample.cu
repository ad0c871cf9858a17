// The kernel of the sample_* operations on CUDA: a block a row, which is read from three times (min-p) to about nine
// (top-k and top-p), from the second time on out of L2.
//   logits [..., vocab]  f32|f16|bf16, last dim dense     token [...]  i64     row values, uniform: any strides
// Workspace: none. Deterministic: integer sums. Safe in graph captures. Source: own. Weights in FP32, rounded to
// multiples of 2^-40. The token of a row without a distribution, or with numbers that a call on the CPU refuses, is -1.
#include "kernels/sampling/common/logits_cuda.h"
#include "kernels/sampling/common/sample_cuda.h"
#include "kernels/sampling/common/select_cuda.h"
#include "kernels/sampling/common/weights_cuda.h"

namespace lz::sampler {
namespace {

struct SampleProblem {
  const void* logits;
  int64_t* token;
  DeviceRows logit_rows, token_rows;
  int64_t rows, vocab, seed, offset;
  RowNumber k, p, min_p, temperature, uniform;
};

struct Extremes {
  float lowest, highest;  // of those above -inf
  int64_t count;          // of them
  bool nan;
};
template <class T>
__device__ Extremes ScanRow(const Logits<T>& x, int64_t n) {
  float lowest = kInfinity, highest = -kInfinity;
  Mass count = 0;
  bool nan = false;
  x.Each(0, n, int(threadIdx.x), kRowThreads, [&](float v) {
    nan |= isnan(v);
    if (!(v > -kInfinity)) return;
    lowest = v < lowest ? v : lowest;
    highest = v > highest ? v : highest;
    ++count;
  });
  return {BlockMin(lowest), BlockMax(highest), int64_t(BlockSum(count)), __syncthreads_or(nan) != 0};
}

// What is kept of a row, as masses.
template <class T>
struct Kept {
  Logits<T> x;
  Weights weights;
  Threshold t;
  double min_p;

  __device__ Mass MassOf(float v) const {
    const float w = weights(v);
    return double(w) >= min_p ? MassOfWeight(w) : 0;
  }
  // The mass of a value, 0 for one of the ties.
  __device__ Mass Take(float v, bool* tie) const {
    if (!(v >= t.value)) return 0;
    *tie = v == t.value && t.ties != kAllTies;
    return *tie ? 0 : MassOf(v);
  }
  __device__ Mass operator()(int64_t i, bool* tie) const { return Take(x(i), tie); }
  template <class Body>
  __device__ void Each(int64_t first, int64_t last, int lane, int lanes, Body body) const {
    x.Each(first, last, lane, lanes, [&](float v) {
      bool tie = false;
      const Mass mass = Take(v, &tie);
      body(mass, tie);
    });
  }
  __device__ Ties TiesOf() const { return t.ties == kAllTies ? Ties{} : Ties{t.ties, MassOf(t.value)}; }
};

struct Filters {
  double k, p, min_p, temperature;
  __device__ bool Valid() const {
    return k >= 1 && p >= 0 && p <= 1 && min_p >= 0 && min_p <= 1 && temperature > 0 && temperature < HUGE_VAL;
  }
};

template <class T>
__device__ void Narrow(Bins& bins, Kept<T>& kept, const Filters& f, const Extremes& e, int64_t n) {
  if (f.k == 1 || f.p == 0) {
    kept.t = {e.highest, 1};
    return;
  }
  const auto mass = [&kept](float v) { return MassOfWeight(kept.weights(v)); };
  if (f.k < double(e.count)) {
    kept.t = SelectThreshold<false>(bins, kept.x, n, e.lowest, e.highest, Mass(f.k), mass);
  }
  if (f.p == 1) return;
  const Mass total = TotalMass(kept, n, kept.TiesOf());
  Mass wanted = Mass(ceil(f.p * double(total)));
  wanted = wanted < 1 ? 1 : wanted > total ? total : wanted;
  const float lowest = kept.t.value > e.lowest ? kept.t.value : e.lowest;
  const Threshold t = SelectThreshold<true>(bins, kept.x, n, lowest, e.highest, wanted, mass);
  if (t.value > kept.t.value || t.ties < kept.t.ties) kept.t = t;
}

template <class T>
__device__ int64_t SampleRow(Bins& bins, const SampleProblem& p, int64_t row) {
  const Filters f = {p.k(row), p.p(row), p.min_p(row), p.temperature(row)};
  Logits<T> x = {static_cast<const T*>(p.logits) + p.logit_rows[row], false};
  Extremes e = ScanRow(x, p.vocab);
  if (e.nan || e.count == 0 || !f.Valid()) return -1;
  if (e.highest == kInfinity) {
    x.infinite = true;
    e = ScanRow(x, p.vocab);
  }
  Kept<T> kept = {x, Weights(e.highest, f.temperature), {e.lowest, kAllTies}, f.min_p};
  Narrow(bins, kept, f, e, p.vocab);
  const double u = p.uniform.data ? Uniform(p.uniform(row)) : PhiloxDraw(p.seed, p.offset, row, 0);
  return Draw(kept, p.vocab, kept.TiesOf(), u);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) Sample(const __grid_constant__ SampleProblem p) {
  __shared__ Bins bins;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t token = SampleRow<T>(bins, p, row);
    if (threadIdx.x == 0) p.token[p.token_rows[row]] = token;
  }
}

// `scalar` and `tensor` are indices of arguments, -1 where the operation has none.
RowNumber NumberOf(const lz_kernel_args& args, int scalar, int tensor, bool integer, double otherwise) {
  if (tensor >= 0 && Given(args.tensors[tensor])) return RowNumber(args.tensors[tensor]);
  if (scalar < 0 || !args.scalars[scalar].given) return RowNumber(otherwise);
  return RowNumber(integer ? double(args.scalars[scalar].value.i) : args.scalars[scalar].value.f);
}

}  // namespace

int32_t LaunchSample(const SampleIndices& a, const lz_kernel_args* args) {
  const lz_tensor &logits = args->tensors[0], &token = args->tensors[a.token], &uniform = args->tensors[a.uniform];
  const SampleProblem p = {.logits = Data<void>(logits),
                           .token = Data<int64_t>(token),
                           .logit_rows = DeviceRows(logits),
                           .token_rows = ElementsOf(token),
                           .rows = NumRows(logits),
                           .vocab = logits.shape[logits.ndim - 1],
                           .seed = args->scalars[a.seed].value.i,
                           .offset = args->scalars[a.offset].value.i,
                           .k = NumberOf(*args, a.k, a.row_k, true, HUGE_VAL),
                           .p = NumberOf(*args, a.p, a.row_p, false, 1),
                           .min_p = NumberOf(*args, a.min_p, a.row_min_p, false, 0),
                           .temperature = NumberOf(*args, a.temperature, a.row_temperature, false, 1),
                           .uniform = Given(uniform) ? RowNumber(uniform) : RowNumber()};
  if (p.rows == 0) return 0;
  constexpr int64_t kMaxBlocks = 1 << 16;
  const unsigned blocks = unsigned(p.rows < kMaxBlocks ? p.rows : kMaxBlocks);
  return WithCudaFloat(DTypeOf(logits), [&](auto t) {
    Sample<decltype(t)><<<blocks, kRowThreads, 0, static_cast<cudaStream_t>(args->stream)>>>(p);
    return Launched();
  });
}

}  // namespace lz::sampler
