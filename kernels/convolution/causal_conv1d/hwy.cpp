// Causal convolution of each channel separately, CPU SIMD: vectors along the channels.
//   input, output [b, s, c], weight [c, k], state [b, c, n] (read and written), bias [c]  f32|f16|bf16
// Output must not alias input. Workspace: none. Deterministic. Source: own; definition in
// ops/convolution/causal_conv1d.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convolution/causal_conv1d/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "kernels/simd_math.h"
#include "kernels/spec.h"
#include "ops/convolution/causal_conv1d.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::convolution_causal_conv1d;

constexpr int64_t kChannels = 64, kMaxTaps = 16, kMaxState = 16;
constexpr int64_t kGrain = 1 << 14;  // results: about 10 us
using Tag = hn::ScalableTag<float>;
using V = hn::Vec<Tag>;

// Some channels of one sequence, reordered from channel-major memory to position by position.
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

// The result of one channel from the `k` values of its window, for sums that may exceed the range of FP32.
template <class Value>
double Exactly(const Block& block, int64_t c, int64_t k, bool silu, const Value& value) {
  double sum = block.bias[c];
  for (int64_t j = 0; j < k; ++j) sum += double(block.weight[j][c]) * value(j);
  return silu ? sum / (1 + std::exp(-sum)) : sum;
}

template <class T>
void Run(const lz_kernel_args* args, int64_t b, int64_t first, Block& block) {
  const lz_tensor &x = args->tensors[kInput], &w = args->tensors[kWeight], &state = args->tensors[kState];
  const lz_tensor &bias = args->tensors[kBias], &out = args->tensors[kOutput];
  const int64_t s = args->axes[kS], k = args->axes[kK], n = args->axes[kN];
  const int64_t channels = std::min(kChannels, args->axes[kC] - first);
  // Without positions there may be no memory.
  T* const kept = n > 0 ? Data<T>(state) + b * state.strides[0] + first * state.strides[1] : nullptr;
  const T* const rows = s > 0 ? Data<const T>(x) + b * x.strides[0] + first : nullptr;
  T* const results = s > 0 ? Data<T>(out) + b * out.strides[0] + first : nullptr;
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
        const auto row = [&] { return rows + at * x.strides[1] + c; };
        const V value = at < 0                  ? hn::LoadU(d, block.before[n + at] + c)
                        : int64_t(rest) < lanes ? LoadF32N(d, row(), rest)
                                                : LoadF32(d, row());
        sum = hn::MulAdd(hn::LoadU(d, block.weight[j] + c), value, sum);
      }
      const bool finite = hn::AllTrue(d, hn::IsFinite(sum));
      if (silu) sum = Silu(d, sum);
      T* const to = results + t * out.strides[1] + c;
      if (!finite) {
        for (int64_t i = c; i < c + int64_t(rest); ++i) {
          const double exact = Exactly(block, i, k, silu, [&](int64_t j) {
            const int64_t at = t - k + 1 + j;
            return double(at < 0 ? block.before[n + at][i] : ToFloat(rows[at * x.strides[1] + i]));
          });
          FromFloat(float(exact), results + t * out.strides[1] + i);
        }
      } else if (int64_t(rest) < lanes) {
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
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

constexpr auto kConstraints = std::to_array<Constraint>({
    {"k", Rel::kLe, 16},
    {"n", Rel::kLe, 16},
});
constexpr std::array kFamily = {
    CpuSpec("hwy.convolution.causal_conv1d", &LaunchBest, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
