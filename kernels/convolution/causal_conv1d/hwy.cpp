// Causal convolution of each channel by itself, CPU SIMD: vectors along the channels.
//   input, output [b, s, c], weight [c, k], state [b, c, n] (read and written), bias [c]  f32|f16|bf16
// Output must not alias input. Workspace: none. Deterministic. Source: own; definition in
// ops/convolution/causal_conv1d.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convolution/causal_conv1d/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "kernels/simd_math.h"
#include "ops/convolution/causal_conv1d.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops::convolution_causal_conv1d;

constexpr int64_t kChannels = 64, kMaxTaps = 16, kMaxState = 16;
constexpr int64_t kGrain = 1 << 14;  // results: some 10 us
using Tag = hn::ScalableTag<float>;
using V = hn::Vec<Tag>;

// Some channels of one sequence, position by position: what lies in memory channel by channel.
struct Block {
  HWY_ALIGN float weight[kMaxTaps][kChannels];
  HWY_ALIGN float before[kMaxState][kChannels];
  HWY_ALIGN float bias[kChannels];
};

// [channels, positions] as [positions][kChannels].
template <class T>
void Turn(const T* from, int64_t stride, int64_t channels, int64_t positions, float (*to)[kChannels]) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < positions; ++i) to[i][c] = ToFloat(from[c * stride + i]);
  }
}

template <class T>
void Run(const lz_kernel_args* args, int64_t b, int64_t first, Block& block) {
  const lz_tensor &x = args->tensors[kInput], &w = args->tensors[kWeight], &state = args->tensors[kState];
  const lz_tensor &bias = args->tensors[kBias], &out = args->tensors[kOutput];
  const int64_t s = args->axes[kS], k = args->axes[kK], n = args->axes[kN];
  const int64_t channels = std::min(kChannels, args->axes[kC] - first);
  T* const kept = Data<T>(state) + b * state.strides[0] + first * state.strides[1];
  const T* const rows = Data<const T>(x) + b * x.strides[0] + first;
  T* const results = Data<T>(out) + b * out.strides[0] + first;
  Turn(Data<const T>(w) + first * w.strides[0], w.strides[0], channels, k, block.weight);
  Turn(kept, state.strides[1], channels, n, block.before);
  for (int64_t c = 0; c < channels; ++c) block.bias[c] = Given(bias) ? ToFloat(Data<const T>(bias)[first + c]) : 0.0f;
  const bool silu = args->scalars[kActivation].value.i == kSilu;
  const Tag d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t t = 0; t < s; ++t) {
    for (int64_t c = 0; c < channels; c += lanes) {
      const size_t rest = size_t(std::min(lanes, channels - c));
      V sum = hn::LoadU(d, block.bias + c);
      for (int64_t j = 0; j < k; ++j) {
        const int64_t at = t - k + 1 + j;
        const T* const row = rows + at * x.strides[1] + c;
        const V value = at < 0                  ? hn::LoadU(d, block.before[n + at] + c)
                        : int64_t(rest) < lanes ? LoadF32N(d, row, rest)
                                                : LoadF32(d, row);
        sum = hn::MulAdd(hn::LoadU(d, block.weight[j] + c), value, sum);
      }
      if (silu) sum = Silu(d, sum);
      T* const to = results + t * out.strides[1] + c;
      if (int64_t(rest) < lanes) {
        StoreF32N(d, sum, to, rest);
      } else {
        StoreF32(d, sum, to);
      }
    }
  }
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = s - n + i;
      if (at < 0) {
        FromFloat(block.before[n + at][c], kept + c * state.strides[1] + i);
      } else {
        kept[c * state.strides[1] + i] = rows[at * x.strides[1] + c];
      }
    }
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const int64_t blocks = (args->axes[kC] + kChannels - 1) / kChannels;
  const int64_t grain = kGrain / ((args->axes[kS] + 4) * kChannels) + 1;
  WithFloatType(DTypeOf(args->tensors[kInput]), [&](auto type) {
    ParallelFor(args, args->axes[kB] * blocks, grain, [&](int64_t begin, int64_t end) {
      Block block = {};
      for (int64_t item = begin; item < end; ++item) {
        Run<decltype(type)>(args, item / blocks, item % blocks * kChannels, block);
      }
    });
  });
  return 0;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Launch);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }

constexpr auto kConstraints = std::to_array<Constraint>({
    {"k", Rel::kLe, 16},
    {"n", Rel::kLe, 16},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.convolution.causal_conv1d",
     .operation = "convolution.causal_conv1d",
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
