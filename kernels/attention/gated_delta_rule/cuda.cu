// The gated delta rule on CUDA, position by position: a block has some columns of a head's state in registers. Eight
// lanes share two columns, each with some of their rows; queries, keys, gates and values come in tiles of positions to
// shared memory, the next tile while those before it are used.
//   query, key [b, s, h_k, d_k], value, output [b, s, h_v, d_v]  f32|f16|bf16     g, beta [b, s, h_v], a_log, dt_bias
//   [h_v] f64|f32|f16|bf16     state [b, h_v, d_k, d_v] f32 (read and written)     last axis dense
// Workspace: none. Deterministic. Safe in graph captures. FP32 throughout. Source: own; arXiv:2412.06464, equation 10.
#include "kernels/cuda_types.h"
#include "kernels/spec.h"
#include "ops/attention/gated_delta_rule.h"

namespace lz {
namespace {
using namespace lz::ops::attention_gated_delta_rule;

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kLanesOfPair = 8, kColumns = 2 * kThreads / kLanesOfPair;  // columns go in pairs
constexpr int kTile = 2048;  // elements of a tile's keys, and of its queries
constexpr int kMostKeyDim = 256;

struct Strides3 {  // of [b, s, head, ...]
  int64_t b, s, h;
};
struct Problem {
  const void *q, *k, *v, *g, *beta, *a_log, *dt_bias;
  void* out;
  float* state;
  Strides3 q_at, k_at, v_at, g_at, beta_at, out_at;
  int64_t state_b, state_h, state_row, a_log_h, dt_bias_h;
  int64_t s;
  int32_t h_v, group, d_k, d_v, slices;
  bool pairs;  // of the state may be loaded at once
  DType g_type, beta_type, a_log_type, dt_bias_type;
  float scale, l2_eps, beta_scale;
  bool l2;
};

// What a head's gates are of.
struct Rate {
  float rate, bias;
  bool logits;
};
__device__ inline Rate RateOf(const Problem& p, int h) {
  if (!p.a_log) return {0, 0, false};
  return {expf(LoadFloat(p.a_log, h * p.a_log_h, p.a_log_type)),
          p.dt_bias ? LoadFloat(p.dt_bias, h * p.dt_bias_h, p.dt_bias_type) : 0.0f, true};
}
__device__ inline float DecayOf(const Rate& of, float g) {
  if (!of.logits) return expf(g);
  const float x = g + of.bias;
  return expf(-of.rate * (x > 30 ? x : log1pf(expf(x))));
}

// A tile of positions as threads load it: warps take positions, lanes elements.
template <class T, int kDK>
struct Loaded {
  static constexpr int kSteps = kTile / kDK, kOfWarp = kSteps / kWarps, kOfLane = kDK / kWarp;
  static constexpr int kValues = kSteps * kColumns / kThreads;
  T q[kOfWarp][kOfLane], k[kOfWarp][kOfLane], v[kValues];
  float g, beta;

  __device__ void Load(const Problem& p, int b, int h, int column0, int64_t t0) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const T zero = FromFloat<T>(0.0f);
    const auto row = [&](const void* data, const Strides3& at, int64_t t, int head) {
      return static_cast<const T*>(data) + b * at.b + t * at.s + head * at.h;
    };
#pragma unroll
    for (int i = 0; i < kOfWarp; ++i) {
      const int64_t t = t0 + warp + i * kWarps;
      const T *from_q = row(p.q, p.q_at, t, h / p.group), *from_k = row(p.k, p.k_at, t, h / p.group);
#pragma unroll
      for (int e = 0; e < kOfLane; ++e) {
        const int d = lane + e * kWarp;
        const bool there = t < p.s && d < p.d_k;
        q[i][e] = there ? from_q[d] : zero;
        k[i][e] = there ? from_k[d] : zero;
      }
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int at = i * kThreads + int(threadIdx.x), column = column0 + at % kColumns;
      const int64_t t = t0 + at / kColumns;
      v[i] = t < p.s && column < p.d_v ? row(p.v, p.v_at, t, h)[column] : zero;
    }
    const int64_t t = t0 + threadIdx.x;
    if (threadIdx.x >= kSteps || t >= p.s) return;
    g = LoadFloat(p.g, b * p.g_at.b + t * p.g_at.s + h * p.g_at.h, p.g_type);
    beta = LoadFloat(p.beta, b * p.beta_at.b + t * p.beta_at.s + h * p.beta_at.h, p.beta_type);
  }
};

// The same in shared memory: queries and keys of the length that the call wants, gates as factors.
template <int kDK>
struct Tile {
  static constexpr int kSteps = kTile / kDK;
  float4 q[kSteps][kDK / 4], k[kSteps][kDK / 4];
  float v[kSteps][kColumns], product[kSteps], decay[kSteps], beta[kSteps];

  template <class T>
  __device__ void Store(const Problem& p, const Loaded<T, kDK>& from, const Rate& rate, int steps) {
    using L = Loaded<T, kDK>;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < L::kOfWarp; ++i) {
      const int step = warp + i * kWarps;
      if (step >= steps) break;
      float qq = 0, kk = 0, qk = 0;
#pragma unroll
      for (int e = 0; e < L::kOfLane; ++e) {
        const float one = ToFloat(from.q[i][e]), other = ToFloat(from.k[i][e]);
        qq += one * one, kk += other * other, qk += one * other;
      }
      float of_q = p.scale, of_k = 1;
      if (p.l2) {
        of_q *= 1.0f / sqrtf(WarpSum(qq) + p.l2_eps);
        of_k = 1.0f / sqrtf(WarpSum(kk) + p.l2_eps);
      }
#pragma unroll
      for (int e = 0; e < L::kOfLane; ++e) {
        const int d = lane + e * kWarp;
        reinterpret_cast<float*>(q[step])[d] = d < p.d_k ? ToFloat(from.q[i][e]) * of_q : 0.0f;
        reinterpret_cast<float*>(k[step])[d] = d < p.d_k ? ToFloat(from.k[i][e]) * of_k : 0.0f;
      }
      qk = WarpSum(qk);
      if (lane == 0) product[step] = qk * of_q * of_k;
    }
#pragma unroll
    for (int i = 0; i < L::kValues; ++i) {
      const int at = i * kThreads + int(threadIdx.x);
      v[at / kColumns][at % kColumns] = ToFloat(from.v[i]);
    }
    if (threadIdx.x >= kSteps) return;
    decay[threadIdx.x] = DecayOf(rate, from.g);
    beta[threadIdx.x] = p.beta_scale * (rate.logits ? 1.0f / (1.0f + expf(-from.beta)) : from.beta);
  }
};

template <class T, int kDK>
__global__ void __launch_bounds__(kThreads) DeltaRule(const Problem p) {
  using L = Loaded<T, kDK>;
  constexpr int kQuads = kDK / (4 * kLanesOfPair);  // of rows, of a lane
  __shared__ Tile<kDK> tile;
  int64_t block = blockIdx.x;
  const int column0 = int(block % p.slices) * kColumns;
  block /= p.slices;
  const int h = int(block % p.h_v), b = int(block / p.h_v);
  const int part = threadIdx.x % kLanesOfPair, mine = threadIdx.x / kLanesOfPair * 2, column = column0 + mine;
  const Rate rate = RateOf(p, h);

  L next;
  next.Load(p, b, h, column0, 0);
  // Of this lane: rows 4 (part + 8 m) up to 4 more of two columns.
  float2 s[kQuads][4];
  const auto each = [&](auto&& body) {  // body(element, its place, whether both columns exist, whether one does)
#pragma unroll
    for (int m = 0; m < kQuads; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 4 * (part + kLanesOfPair * m) + i;
        float* at = p.state + b * p.state_b + h * p.state_h + row * p.state_row + column;
        body(s[m][i], at, row < p.d_k && column + 1 < p.d_v, row < p.d_k && column < p.d_v);
      }
    }
  };
  each([&](float2& x, const float* at, bool both, bool one) {
    if (p.pairs) {
      x = both ? *reinterpret_cast<const float2*>(at) : float2{0, 0};
    } else {
      x = {one ? at[0] : 0.0f, both ? at[1] : 0.0f};
    }
  });
  T* out = static_cast<T*>(p.out) + b * p.out_at.b + h * p.out_at.h + column;
  for (int64_t t0 = 0; t0 < p.s; t0 += L::kSteps) {
    const int steps = t0 + L::kSteps < p.s ? L::kSteps : int(p.s - t0);
    __syncthreads();  // the tile before is done with
    tile.Store(p, next, rate, steps);
    __syncthreads();
    next.Load(p, b, h, column0, t0 + L::kSteps);
    for (int t = 0; t < steps; ++t, out += p.out_at.s) {
      const float decay = tile.decay[t];
      float2 seen[2] = {}, read[2] = {};
      float4 key[kQuads];
#pragma unroll
      for (int m = 0; m < kQuads; ++m) {
        key[m] = tile.k[t][part + kLanesOfPair * m];
        const float4 q = tile.q[t][part + kLanesOfPair * m];
        const float ks[4] = {key[m].x, key[m].y, key[m].z, key[m].w}, qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float2& x = s[m][i];
          x.x *= decay, x.y *= decay;
          seen[i % 2].x += x.x * ks[i], seen[i % 2].y += x.y * ks[i];
          read[i % 2].x += x.x * qs[i], read[i % 2].y += x.y * qs[i];
        }
      }
      float sums[4] = {seen[0].x + seen[1].x, seen[0].y + seen[1].y, read[0].x + read[1].x, read[0].y + read[1].y};
#pragma unroll
      for (int step = kLanesOfPair / 2; step > 0; step /= 2) {
#pragma unroll
        for (float& sum : sums) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      }
      const float beta = tile.beta[t];
      const float2 change = {beta * (tile.v[t][mine] - sums[0]), beta * (tile.v[t][mine + 1] - sums[1])};
#pragma unroll
      for (int m = 0; m < kQuads; ++m) {
        const float ks[4] = {key[m].x, key[m].y, key[m].z, key[m].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][i].x += ks[i] * change.x, s[m][i].y += ks[i] * change.y;
      }
      const float product = tile.product[t];
      if (part == 0 && column < p.d_v) out[0] = FromFloat<T>(sums[2] + product * change.x);
      if (part == 0 && column + 1 < p.d_v) out[1] = FromFloat<T>(sums[3] + product * change.y);
    }
  }
  each([&](const float2& x, float* at, bool both, bool one) {
    if (p.pairs) {
      if (both) *reinterpret_cast<float2*>(at) = x;
    } else {
      if (one) at[0] = x.x;
      if (both) at[1] = x.y;
    }
  });
}

template <class T, int kDK>
int32_t LaunchOf(const Problem& p, int64_t b, void* stream) {
  const int64_t blocks = b * p.h_v * p.slices;
  if (blocks > 0x7fffffff) return CudaCode(cudaErrorInvalidValue);
  DeltaRule<T, kDK><<<unsigned(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}

Strides3 StridesOf(const lz_tensor& t) { return {t.strides[0], t.strides[1], t.strides[2]}; }

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &state = t[kState], &a_log = t[kALog], &dt_bias = t[kDtBias];
  const lz_scalar* s = args->scalars;
  const int64_t* axes = args->axes;
  if (axes[kB] == 0 || axes[kS] == 0 || axes[kHV] == 0 || axes[kDV] == 0) return LZ_LAUNCH_DONE;
  Problem p = {.q = Data<void>(t[kQuery]),
               .k = Data<void>(t[kKey]),
               .v = Data<void>(t[kValue]),
               .g = Data<void>(t[kG]),
               .beta = Data<void>(t[kBeta]),
               .out = Data<void>(t[kOutput]),
               .state = Data<float>(state),
               .q_at = StridesOf(t[kQuery]),
               .k_at = StridesOf(t[kKey]),
               .v_at = StridesOf(t[kValue]),
               .g_at = StridesOf(t[kG]),
               .beta_at = StridesOf(t[kBeta]),
               .out_at = StridesOf(t[kOutput]),
               .state_b = state.strides[0],
               .state_h = state.strides[1],
               .state_row = state.strides[2],
               .s = axes[kS],
               .h_v = int32_t(axes[kHV]),
               .group = int32_t(axes[kHV] / axes[kHK]),
               .d_k = int32_t(axes[kDK]),
               .d_v = int32_t(axes[kDV]),
               .slices = int32_t((axes[kDV] + kColumns - 1) / kColumns),
               .pairs = ((state.strides[0] | state.strides[1] | state.strides[2] | axes[kDV]) & 1) == 0 &&
                        reinterpret_cast<uintptr_t>(Data<float>(state)) % sizeof(float2) == 0,
               .g_type = DTypeOf(t[kG]),
               .beta_type = DTypeOf(t[kBeta]),
               .scale = float(s[kScale].value.f),
               .l2_eps = s[kL2Eps].given ? float(s[kL2Eps].value.f) : 0.0f,
               .beta_scale = float(s[kBetaScale].value.f),
               .l2 = s[kL2Eps].given != 0};
  if (Given(a_log)) p.a_log = Data<void>(a_log), p.a_log_type = DTypeOf(a_log), p.a_log_h = a_log.strides[0];
  if (Given(dt_bias)) {
    p.dt_bias = Data<void>(dt_bias), p.dt_bias_type = DTypeOf(dt_bias), p.dt_bias_h = dt_bias.strides[0];
  }
  return WithCudaFloat(DTypeOf(t[kQuery]), [&](auto type) {
    using T = decltype(type);
    if (p.d_k <= 64) return LaunchOf<T, 64>(p, axes[kB], args->stream);
    if (p.d_k <= 128) return LaunchOf<T, 128>(p, axes[kB], args->stream);
    return LaunchOf<T, kMostKeyDim>(p, axes[kB], args->stream);
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"d_k", Rel::kGe, 1},
    {"d_k", Rel::kLe, kMostKeyDim},
    {"d_v", Rel::kLe, int64_t{1} << 24},
});
constexpr std::array kFamily = {
    CudaSpec("cuda.attention.gated_delta_rule", &Launch, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
