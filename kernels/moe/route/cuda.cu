// moe.route on CUDA: a warp a token; scores and choices in FP64, as the definition orders them.
//   logits [..., experts]  f64|f32|f16|bf16, last dim dense     bias [experts] any float, dense, optional
//   weights [..., k] f32, expert_ids [..., k] i32
// At most 512 experts in at most 32 groups. Workspace: none. Deterministic. Safe in graph captures. Source: own.
#include "kernels/cuda_types.h"
#include "kernels/spec.h"
#include "ops/moe/route.h"

namespace lz {
namespace {
using namespace lz::ops::moe_route;

constexpr int kMost = 512;  // experts
constexpr int kTokens = 4;  // of a block

struct Problem {
  const void *logits, *bias;
  DeviceRows rows;
  int64_t tokens;
  DType logits_type, bias_type;
  float* weights;
  int32_t* ids;
  double scale, min_sum;
  int32_t experts, k, scoring, groups, top_groups;
  bool renormalize, top2;
};

struct Choice {
  double value;
  int32_t index;
};
// NaN is the largest, equal values go to the lower index.
__device__ bool Better(double a, int32_t i, double b, int32_t j) {
  if (isnan(a) || isnan(b)) return isnan(a) && (!isnan(b) || i < j);
  return a > b || (a == b && i < j);
}
__device__ Choice WarpBest(Choice mine) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const double value = __shfl_xor_sync(0xffffffffu, mine.value, step);
    const int32_t index = __shfl_xor_sync(0xffffffffu, mine.index, step);
    if (index >= 0 && (mine.index < 0 || Better(value, index, mine.value, mine.index))) mine = {value, index};
  }
  return mine;
}
__device__ double WarpSum64(double v) {
  for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}

__device__ double Score(double x, int32_t scoring) {
  if (scoring == kSigmoid) return 1.0 / (1.0 + exp(-x));
  return sqrt(x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)));  // of softplus
}

// score[e] of this lane's experts, by softmax.
__device__ void Softmax(const double* x, double* score, int experts, int lane) {
  double top = -HUGE_VAL;
  for (int e = lane; e < experts; e += kWarp) top = x[e] > top ? x[e] : top;
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(0xffffffffu, top, step);
    top = other > top ? other : top;
  }
  double sum = 0;
  for (int e = lane; e < experts; e += kWarp) sum += score[e] = exp(x[e] - top);
  sum = WarpSum64(sum);
  for (int e = lane; e < experts; e += kWarp) score[e] /= sum;
}

// The value of group `lane`: its largest choice, or the sum of its two largest.
__device__ Choice GroupValue(const Problem& p, const double* choice, int lane) {
  if (lane >= p.groups) return {0, -1};
  const int size = p.experts / p.groups, first = lane * size;
  int best = -1, second = -1;
  for (int e = first; e < first + size; ++e) {
    if (best < 0 || Better(choice[e], e, choice[best], best)) {
      second = best;
      best = e;
    } else if (second < 0 || Better(choice[e], e, choice[second], second)) {
      second = e;
    }
  }
  if (best < 0) return {0, lane};
  return {choice[best] + (p.top2 && second >= 0 ? choice[second] : 0.0), lane};
}

// Bit g is set where group g stays.
__device__ uint32_t BestGroups(const Problem& p, const double* choice, int lane) {
  if (p.groups == 1) return 1;
  const Choice mine = GroupValue(p, choice, lane);
  uint32_t kept = 0;
  for (int i = 0; i < p.top_groups; ++i) {
    const Choice best = WarpBest(kept >> lane & 1 ? Choice{0, -1} : mine);
    if (best.index >= 0) kept |= 1u << best.index;
  }
  return kept;
}

__global__ void __launch_bounds__(kWarp* kTokens) Route(const Problem p) {
  __shared__ double scores[kTokens][kMost], choices[kTokens][kMost];
  const int lane = threadIdx.x;
  double *score = scores[threadIdx.y], *choice = choices[threadIdx.y];
  for (int64_t token = int64_t(blockIdx.x) * kTokens + threadIdx.y; token < p.tokens;
       token += int64_t(gridDim.x) * kTokens) {
    const int64_t row = p.rows[token];
    for (int e = lane; e < p.experts; e += kWarp) choice[e] = LoadDouble(p.logits, row + e, p.logits_type);
    if (p.scoring == kSoftmax) {
      Softmax(choice, score, p.experts, lane);
    } else {
      for (int e = lane; e < p.experts; e += kWarp) score[e] = Score(choice[e], p.scoring);
    }
    for (int e = lane; e < p.experts; e += kWarp) {
      choice[e] = score[e] + (p.bias ? LoadDouble(p.bias, e, p.bias_type) : 0.0);
    }
    __syncwarp();
    const uint32_t groups = BestGroups(p, choice, lane);
    const int size = p.experts / p.groups;
    uint32_t taken = 0;  // bit h: expert lane + 32 h
    double sum = 0;
    for (int i = 0; i < p.k; ++i) {
      Choice mine = {0, -1};
      for (int h = 0, e = lane; e < p.experts; ++h, e += kWarp) {
        if (taken >> h & 1 || !(groups >> (e / size) & 1)) continue;
        if (mine.index < 0 || Better(choice[e], e, mine.value, mine.index)) mine = {choice[e], e};
      }
      const Choice best = WarpBest(mine);
      if (best.index % kWarp == lane) taken |= 1u << (best.index / kWarp);
      sum += score[best.index];
      if (lane == 0) p.ids[token * p.k + i] = best.index;
    }
    __syncwarp();  // lane 0 has written what all read
    if (sum < p.min_sum) sum = p.min_sum;
    for (int i = lane; i < p.k; i += kWarp) {
      const double weight = score[p.ids[token * p.k + i]];
      p.weights[token * p.k + i] = float((!p.renormalize ? weight : sum == 0 ? 0.0 : weight / sum) * p.scale);
    }
    __syncwarp();  // before the next token's values
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &logits = args->tensors[kLogits], &bias = args->tensors[kBias];
  const lz_scalar* s = args->scalars;
  const Problem p = {.logits = Data<void>(logits),
                     .bias = Given(bias) ? Data<void>(bias) : nullptr,
                     .rows = DeviceRows(logits),
                     .tokens = NumRows(logits),
                     .logits_type = DTypeOf(logits),
                     .bias_type = Given(bias) ? DTypeOf(bias) : DType::kF32,
                     .weights = Data<float>(args->tensors[kWeights]),
                     .ids = Data<int32_t>(args->tensors[kExpertIds]),
                     .scale = s[kScale].value.f,
                     .min_sum = s[kMinSum].value.f,
                     .experts = int32_t(logits.shape[logits.ndim - 1]),
                     .k = int32_t(s[kK].value.i),
                     .scoring = int32_t(s[kScoring].value.i),
                     .groups = int32_t(s[kNumGroups].value.i),
                     .top_groups = int32_t(s[kTopGroups].value.i),
                     .renormalize = s[kRenormalize].value.i != 0,
                     .top2 = s[kGroupScore].value.i == kTop2Sum};
  if (p.tokens == 0 || p.k == 0 || p.experts == 0) return 0;
  constexpr int64_t kMaxBlocks = 1 << 16;
  const int64_t blocks = (p.tokens + kTokens - 1) / kTokens;
  Route<<<unsigned(blocks < kMaxBlocks ? blocks : kMaxBlocks), dim3(kWarp, kTokens), 0,
          static_cast<cudaStream_t>(args->stream)>>>(p);
  return Launched();
}

constexpr auto kScorings = std::to_array<int64_t>({kSoftmax, kSigmoid, kSqrtSoftplus});
constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"experts", Rel::kLe, kMost},
    {"num_groups", Rel::kLe, kWarp},
    {.field = "scoring", .rel = Rel::kInSet, .set = kScorings},
});
constexpr std::array kFamily = {
    CudaSpec("cuda.moe.route", &Launch, {.dtypes = kFloats, .constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
