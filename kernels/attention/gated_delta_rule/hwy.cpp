// The gated delta rule, CPU SIMD: position by position, one pass over the state for each.
//   query, key [b, s, h_k, d_k], value, output [b, s, h_v, d_v]  f32|f16|bf16
//   g, beta [b, s, h_v], a_log, dt_bias [h_v]  any float dtype
//   state [b, h_v, d_k, d_v]  f32, read and written
// Columns of a state are independent: a block of them stays in L1 for some positions. The pass that writes the state
// after one position reads it for the next one; the product of the query follows from the previous state: S'^T q =
// decay S^T q + (k . q) delta. Output must not alias an input. Workspace: none. Deterministic. Source: own; formula
// from arXiv:2412.06464, eq. 10.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/gated_delta_rule/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>
#include <cmath>

#include "core/view.h"
#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "kernels/spec.h"
#include "ops/attention/gated_delta_rule.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::attention_gated_delta_rule;

constexpr int64_t kPositions = 16, kMaxDK = 256;
constexpr int64_t kGrain = 1 << 16;  // elements of states times positions: about 20 us
using Tag = hn::ScalableTag<float>;
using V = hn::Vec<Tag>;
constexpr int kVectors = hn::MaxLanes(Tag()) >= 16 ? 4 : 2;  // vectors of sums in registers, two sets of them

// Some positions of one head.
struct Positions {
  HWY_ALIGN float query[kPositions][kMaxDK], key[kPositions][kMaxDK];
  float decay[kPositions], beta[kPositions], product[kPositions];  // product: key . query
};

// Elements with distance `stride`.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
};

// A row as f32 times `factor`, or times `factor` divided by its length.
template <class T>
void LoadRow(const T* from, int64_t size, const lz_scalar& l2_eps, float factor, float* to) {
  const Tag d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  V squares = hn::Zero(d);
  int64_t i = 0;
  const auto take = [&](V x, auto store) HWY_ATTR {
    squares = hn::MulAdd(x, x, squares);
    store(x);
  };
  for (; i + lanes <= size; i += lanes) take(LoadF32(d, from + i), [&](V x) HWY_ATTR { hn::StoreU(x, d, to + i); });
  if (i < size) {
    const size_t rest = size_t(size - i);
    take(LoadF32N(d, from + i, rest), [&](V x) HWY_ATTR { StoreF32N(d, x, to + i, rest); });
  }
  if (l2_eps.given) {
    double length = hn::GetLane(hn::SumOfLanes(d, squares));
    if (!(length > 0x1p-100 && length < 0x1p120)) {  // squares may exceed the range of FP32
      length = 0;
      for (i = 0; i < size; ++i) length += double(to[i]) * double(to[i]);
    }
    factor = float(factor / std::sqrt(length + l2_eps.value.f));
  }
  for (i = 0; i < size; ++i) to[i] *= factor;
}

template <class T>
class Head {
 public:
  Head(const lz_kernel_args* args, int64_t b, int64_t h)
      : args_(args), b_(b), h_(h), d_k_(args->axes[kDK]), head_(h / (args->axes[kHV] / args->axes[kHK])) {
    const View a_log(args->tensors[kALog]), dt_bias(args->tensors[kDtBias]);
    if (a_log.given()) rate_ = -std::exp(float(a_log.Get({h})));
    if (dt_bias.given()) bias_ = float(dt_bias.Get({h}));
  }

  // Columns [first, last) of the state, over all positions.
  void Run(int64_t first, int64_t last, Positions& p) const {
    const lz_tensor &state = args_->tensors[kState], &value = args_->tensors[kValue], &out = args_->tensors[kOutput];
    float* const s = Data<float>(state) + b_ * state.strides[0] + h_ * state.strides[1];
    for (int64_t t = 0; t < args_->axes[kS]; t += kPositions) {
      const int64_t count = std::min(kPositions, args_->axes[kS] - t);
      for (int64_t i = 0; i < count; ++i) Take(t + i, p, i);
      const Rows<const T> values = {At<const T>(value, t, h_), value.strides[1]};
      const Rows<T> outs = {At<T>(out, t, h_), out.strides[1]};
      const int64_t lanes = int64_t(hn::Lanes(Tag()));
      const auto block = [&]<int W, bool kWhole>(int64_t j, int64_t width) HWY_ATTR {
        Columns<W, kWhole>(p, count, {s + j, state.strides[2]}, {values.data + j, values.stride},
                           {outs.data + j, outs.stride}, size_t(width));
      };
      int64_t j = first;
      for (; j + kVectors * lanes <= last; j += kVectors * lanes) {
        block.template operator()<kVectors, true>(j, kVectors * lanes);
      }
      for (; j + lanes <= last; j += lanes) block.template operator()<1, true>(j, lanes);
      if (j < last) block.template operator()<1, false>(j, last - j);
    }
  }

 private:
  template <class U>
  U* At(const lz_tensor& rows, int64_t t, int64_t head) const {
    return Data<U>(rows) + b_ * rows.strides[0] + t * rows.strides[1] + head * rows.strides[2];
  }

  void Take(int64_t t, Positions& p, int64_t i) const {
    const lz_scalar* s = args_->scalars;
    LoadRow(At<const T>(args_->tensors[kQuery], t, head_), d_k_, s[kL2Eps], float(s[kScale].value.f), p.query[i]);
    LoadRow(At<const T>(args_->tensors[kKey], t, head_), d_k_, s[kL2Eps], 1.0f, p.key[i]);
    float g = float(View(args_->tensors[kG]).Get({b_, t, h_})),
          beta = float(View(args_->tensors[kBeta]).Get({b_, t, h_}));
    if (Given(args_->tensors[kALog])) {
      const float x = g + bias_;
      g = rate_ * (x > 20 ? x : std::log1p(std::exp(x)));
      beta = 1 / (1 + std::exp(-beta));
    }
    p.decay[i] = std::exp(g);
    p.beta[i] = beta * float(s[kBetaScale].value.f);
    p.product[i] = 0;
    for (int64_t c = 0; c < d_k_; ++c) p.product[i] += p.key[i][c] * p.query[i][c];
  }

  // W vectors of columns, the last of which may be partial: `width` columns in total.
  template <int W, bool kWhole>
  HWY_NOINLINE void Columns(const Positions& p, int64_t count, Rows<float> state, Rows<const T> values, Rows<T> outs,
                            size_t width) const {
    const Tag d;
    const int64_t lanes = int64_t(hn::Lanes(d));
    const auto load = [&](const float* from) HWY_ATTR {
      if constexpr (kWhole) {
        return hn::LoadU(d, from);
      } else {
        return LoadF32N(d, from, width);
      }
    };
    V seen[W], read[W], delta[W];  // S^T k and S^T q of the next position
    const auto look = [&](V s, int v, V k, V q) HWY_ATTR {
      seen[v] = hn::MulAdd(s, k, seen[v]);
      read[v] = hn::MulAdd(s, q, read[v]);
    };
    const auto clear = [&]() HWY_ATTR {
      for (int v = 0; v < W; ++v) seen[v] = read[v] = hn::Zero(d);
    };
    clear();
    for (int64_t c = 0; c < d_k_; ++c) {
      const V k = hn::Set(d, p.key[0][c]), q = hn::Set(d, p.query[0][c]);
#pragma GCC unroll 4
      for (int v = 0; v < W; ++v) look(load(state.data + c * state.stride + v * lanes), v, k, q);
    }
    for (int64_t t = 0; t < count; ++t) {
      const V decay = hn::Set(d, p.decay[t]), beta = hn::Set(d, p.beta[t]), product = hn::Set(d, p.product[t]);
      for (int v = 0; v < W; ++v) {
        const T* value = values.data + t * values.stride + v * lanes;
        T* out = outs.data + t * outs.stride + v * lanes;
        if constexpr (kWhole) {
          delta[v] = hn::Mul(beta, hn::NegMulAdd(decay, seen[v], LoadF32(d, value)));
          StoreF32(d, hn::MulAdd(product, delta[v], hn::Mul(decay, read[v])), out);
        } else {
          delta[v] = hn::Mul(beta, hn::NegMulAdd(decay, seen[v], LoadF32N(d, value, width)));
          StoreF32N(d, hn::MulAdd(product, delta[v], hn::Mul(decay, read[v])), out, width);
        }
      }
      const int64_t next = std::min(t + 1, count - 1);  // those of the last position are not used
      clear();
      for (int64_t c = 0; c < d_k_; ++c) {
        const V now = hn::Set(d, p.key[t][c]), k = hn::Set(d, p.key[next][c]), q = hn::Set(d, p.query[next][c]);
#pragma GCC unroll 4
        for (int v = 0; v < W; ++v) {
          float* const at = state.data + c * state.stride + v * lanes;
          const V s = hn::MulAdd(now, delta[v], hn::Mul(decay, load(at)));
          if constexpr (kWhole) {
            hn::StoreU(s, d, at);
          } else {
            StoreF32N(d, s, at, width);
          }
          look(s, v, k, q);
        }
      }
    }
  }

  const lz_kernel_args* args_;
  int64_t b_, h_, d_k_, head_;
  float rate_ = 0, bias_ = 0;
};

int32_t Launch(const lz_kernel_args* args) {
  const int64_t heads = args->axes[kB] * args->axes[kHV], d_v = args->axes[kDV];
  if (d_v == 0) return 0;
  const int64_t block = kVectors * int64_t(hn::Lanes(Tag()));
  const int64_t most = (d_v + block - 1) / block, threads = args->parallel ? args->parallel->num_threads : 1;
  const int64_t parts = std::clamp<int64_t>(heads > 0 ? 2 * threads / heads : 1, 1, std::max<int64_t>(most, 1));
  const int64_t width = (most + parts - 1) / parts * block;
  const int64_t work = (args->axes[kS] + 1) * args->axes[kDK] * std::min(width, d_v);
  WithFloatType(DTypeOf(args->tensors[kQuery]), [&](auto type) {
    ParallelFor(args, heads * parts, kGrain / (work + 1) + 1, [&](int64_t begin, int64_t end) {
      Positions positions;
      for (int64_t item = begin; item < end; ++item) {
        const int64_t head = item / parts, first = item % parts * width;
        Head<decltype(type)>(args, head / args->axes[kHV], head % args->axes[kHV])
            .Run(std::min(first, d_v), std::min(first + width, d_v), positions);
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
    {"d_k", Rel::kGe, 1},
    {"d_k", Rel::kLe, 256},
});
constexpr std::array kFamily = {
    CpuSpec("hwy.attention.gated_delta_rule", &LaunchBest, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
