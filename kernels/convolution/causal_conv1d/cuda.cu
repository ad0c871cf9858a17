// Causal convolution of each channel separately on CUDA: a thread has some channels over a run of positions. That of
// the first run alone reads the state and writes it.
//   input, output [b, s, c], weight [c, k], state [b, c, n] (read and written), bias [c]  f32|f16|bf16, last axis dense
// Output must not alias input. Workspace: none. Deterministic. Safe in graph captures. Sums in FP32, again in FP64
// where they leave its range; in FP64 for windows of other than 2 to 4 positions. Source: own.
#include "kernels/activation/functions_cuda.h"
#include "kernels/cuda.h"
#include "kernels/spec.h"
#include "ops/convolution/causal_conv1d.h"

namespace lz {
namespace {
using namespace lz::ops::convolution_causal_conv1d;

constexpr int kThreads = 128;
constexpr int kChannels = 2;                 // of a thread, where vectors of them are aligned
constexpr int kAhead = 8;                    // positions that are loaded before the first of them is used
constexpr int64_t kRun = 16, kShortRun = 8;  // positions of a thread
constexpr int64_t kManyThreads = 1 << 16;

struct Problem {
  const void *x, *w, *bias;
  void *state, *out;
  int64_t x_b, x_s, w_c, state_b, state_c, out_b, out_s;
  int64_t s, run;
  int32_t runs, c, k, n;  // runs of a sequence
  bool silu;
};

template <class T, int kWidth>
struct Channels {
  const T *x, *w;  // of the first of them
  T *state, *out;

  // Position t of channel v; before the first there is the state.
  __device__ float At(const Problem& p, int64_t t, int v) const {
    return ToFloat(t < 0 ? state[v * p.state_c + p.n + t] : x[t * p.x_s + v]);
  }
  // state: the last n of the old one and the positions. It is read from further on than it is written.
  __device__ void Keep(const Problem& p) const {
    constexpr int kAtOnce = 4;
    T kept[kAtOnce][kWidth];
    for (int i0 = 0; i0 < p.n; i0 += kAtOnce) {
      const auto each = [&](auto&& body) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (i0 + i >= p.n) break;
#pragma unroll
          for (int v = 0; v < kWidth; ++v) body(kept[i][v], i0 + i, v);
        }
      };
      each([&](T& value, int i, int v) {
        const int64_t t = p.s - p.n + i;
        value = t < 0 ? state[v * p.state_c + i + p.s] : x[t * p.x_s + v];
      });
      each([&](const T& value, int i, int v) { state[v * p.state_c + i] = value; });
    }
  }
};

// Positions from begin on in FP64.
template <class T, int kWidth>
__device__ void RunExactly(const Problem& p, const Channels<T, kWidth>& of, const float (&bias)[kWidth], int64_t begin,
                           int64_t end) {
#pragma unroll 1
  for (int64_t t = begin; t < end; ++t) {
#pragma unroll
    for (int v = 0; v < kWidth; ++v) {
      double sum = bias[v];
#pragma unroll 1
      for (int j = 0; j < p.k; ++j) sum += double(ToFloat(of.w[v * p.w_c + j])) * of.At(p, t - p.k + 1 + j, v);
      of.out[t * p.out_s + v] = FromFloat<T>(float(p.silu ? sum / (1 + exp(-sum)) : sum));
    }
  }
}

// The same in FP32. False if a sum is not finite.
template <class T, int kWidth, int kTaps>
__device__ bool RunOfTaps(const Problem& p, const Channels<T, kWidth>& of, const float (&bias)[kWidth], int64_t begin,
                          int64_t end) {
  using V = Vector<T, kWidth>;
  float w[kTaps][kWidth], x[kTaps - 1 + kAhead][kWidth];  // positions from kTaps - 1 before the step's first on
#pragma unroll
  for (int v = 0; v < kWidth; ++v) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) w[j][v] = ToFloat(of.w[v * p.w_c + j]);
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) x[j][v] = of.At(p, begin - kTaps + 1 + j, v);
  }
  bool finite = true;
  for (int64_t t = begin; t < end; t += kAhead) {
    V loaded[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (t + i < end) loaded[i] = *reinterpret_cast<const V*>(of.x + (t + i) * p.x_s);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int v = 0; v < kWidth; ++v) x[kTaps - 1 + i][v] = ToFloat(loaded[i].v[v]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (t + i >= end) break;
      V result;
#pragma unroll
      for (int v = 0; v < kWidth; ++v) {
        float sum = bias[v];
#pragma unroll
        for (int j = 0; j < kTaps; ++j) sum = __fmaf_rn(w[j][v], x[i + j][v], sum);
        finite &= fabsf(sum) <= 3.402823466e38f;
        if (p.silu) sum *= Sigmoid(sum);
        result.v[v] = FromFloat<T>(sum);
      }
      *reinterpret_cast<V*>(of.out + (t + i) * p.out_s) = result;
    }
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) {
#pragma unroll
      for (int v = 0; v < kWidth; ++v) x[j][v] = x[kAhead + j][v];
    }
  }
  return finite;
}

// kTaps: of the window; 0: any number.
template <class T, int kWidth, int kTaps>
__global__ void __launch_bounds__(kThreads) Convolve(const Problem p) {
  const int64_t groups = (p.c + kThreads * kWidth - 1) / (kThreads * kWidth);  // blocks for the channels of a position
  int64_t block = blockIdx.x;
  const int64_t first = (block % groups * kThreads + threadIdx.x) * kWidth;
  if (first >= p.c) return;
  block /= groups;
  const int64_t begin = block % p.runs * p.run, b = block / p.runs;
  const int64_t end = begin + p.run < p.s ? begin + p.run : p.s;
  const Channels<T, kWidth> of = {
      static_cast<const T*>(p.x) + b * p.x_b + first, static_cast<const T*>(p.w) + first * p.w_c,
      static_cast<T*>(p.state) + b * p.state_b + first * p.state_c, static_cast<T*>(p.out) + b * p.out_b + first};
  float bias[kWidth];
#pragma unroll
  for (int v = 0; v < kWidth; ++v) bias[v] = p.bias ? ToFloat(static_cast<const T*>(p.bias)[first + v]) : 0.0f;
  bool done = false;
  if constexpr (kTaps > 0) done = RunOfTaps<T, kWidth, kTaps>(p, of, bias, begin, end);
  if (!done) RunExactly(p, of, bias, begin, end);
  if (begin == 0) of.Keep(p);
}

template <class T, int kWidth, int kTaps>
int32_t LaunchConvolve(Problem p, int64_t b, void* stream) {
  const int64_t groups = (p.c + kThreads * kWidth - 1) / (kThreads * kWidth);
  const bool many = b * ((p.c + kWidth - 1) / kWidth) * (p.s / kRun) >= kManyThreads;
  p.run = many ? kRun : kShortRun;
  if (p.run < p.k - 1) p.run = p.k - 1;  // later runs begin after the state
  p.runs = int32_t((p.s + p.run - 1) / p.run);
  const int64_t blocks = b * p.runs * groups;
  if (blocks > 0x7fffffff) return CudaCode(cudaErrorInvalidValue);
  Convolve<T, kWidth, kTaps><<<unsigned(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}

template <class T, int kWidth>
int32_t LaunchTaps(const Problem& p, int64_t b, void* stream) {
  switch (p.k) {
    case 2: return LaunchConvolve<T, kWidth, 2>(p, b, stream);
    case 3: return LaunchConvolve<T, kWidth, 3>(p, b, stream);
    case 4: return LaunchConvolve<T, kWidth, 4>(p, b, stream);
    default: return LaunchConvolve<T, 1, 0>(p, b, stream);
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &x = t[kInput], &w = t[kWeight], &state = t[kState], &out = t[kOutput];
  const int64_t b = args->axes[kB];
  const Problem p = {.x = Data<void>(x),
                     .w = Data<void>(w),
                     .bias = Given(t[kBias]) ? Data<void>(t[kBias]) : nullptr,
                     .state = Data<void>(state),
                     .out = Data<void>(out),
                     .x_b = x.strides[0],
                     .x_s = x.strides[1],
                     .w_c = w.strides[0],
                     .state_b = state.strides[0],
                     .state_c = state.strides[1],
                     .out_b = out.strides[0],
                     .out_s = out.strides[1],
                     .s = args->axes[kS],
                     .c = int32_t(args->axes[kC]),
                     .k = int32_t(args->axes[kK]),
                     .n = int32_t(args->axes[kN]),
                     .silu = args->scalars[kActivation].value.i == kSilu};
  if (b == 0 || p.s == 0 || p.c == 0) return LZ_LAUNCH_DONE;  // the state stays
  return WithCudaFloat(DTypeOf(x), [&](auto type) {
    using T = decltype(type);
    const int64_t strides = p.x_b | p.x_s | p.out_b | p.out_s | p.c;
    const uintptr_t places = reinterpret_cast<uintptr_t>(p.x) | reinterpret_cast<uintptr_t>(p.out);
    const bool vectors = strides % kChannels == 0 && places % (kChannels * sizeof(T)) == 0;
    return vectors ? LaunchTaps<T, kChannels>(p, b, args->stream) : LaunchTaps<T, 1>(p, b, args->stream);
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"c", Rel::kLe, int64_t{1} << 30},
    {"k", Rel::kLe, int64_t{1} << 20},
    {"n", Rel::kLe, int64_t{1} << 20},
});
constexpr std::array kFamily = {
    CudaSpec("cuda.convolution.causal_conv1d", &Launch, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
