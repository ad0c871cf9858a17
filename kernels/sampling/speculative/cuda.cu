// Chain speculative sampling on CUDA: a block a sequence. Its threads judge the drafts in FP64, then draw from the row
// of weights of the first position that is not accepted.
//   draft_probs [b, n, vocab], target_probs [b, n + 1, vocab]  f32|f16|bf16     draft_token_ids [b, n]  i32|i64
//   output_token_ids [b, n + 1], num_accepted [b]  i64; all contiguous
// Workspace: none. Deterministic: integer sums. Safe in graph captures. Source: own; arXiv:2211.17192, algorithm 1.
#include "kernels/sampling/common/draw_cuda.h"
#include "kernels/spec.h"
#include "ops/sampling/speculative.h"

namespace lz {
namespace {
using namespace lz::ops::sampling_speculative;
using namespace lz::sampler;

struct Chains {
  const void *draft, *target, *ids;
  int64_t *out, *accepted;
  int64_t b, n, vocab, seed, offset;
  RowNumber uniform;
  bool wide_ids;

  // Number `which` (0: accepts, 1: draws) of position i.
  __device__ double DrawOf(int64_t row, int64_t i, int which) const {
    if (uniform.data) return Uniform(uniform((row * (n + 1) + i) * 2 + which));
    return PhiloxDraw(seed, offset, row, uint32_t(1 + which + 2 * i));
  }
};

// max(p - q, 0), as masses of which the largest weighs from 2^39 to 2^40; q: nullptr after the last draft.
template <class T>
struct Residual {
  const T *p, *q;
  int shift;
  __device__ float Weight(int i) const {
    const float w = q ? ToFloat(p[i]) - ToFloat(q[i]) : ToFloat(p[i]);
    return w > 0 || isnan(w) ? w : 0.0f;
  }
  __device__ Mass operator()(int i, bool*) const { return __float2ull_rn(ldexpf(Weight(i), shift)); }
  template <class Body>
  __device__ void Each(int first, int last, int lane, int lanes, Body body) const {
#pragma unroll 4
    for (int i = first + lane; i < last; i += lanes) body((*this)(i, nullptr), false);
  }
  // The largest weight; NaN where one is.
  __device__ float Largest(int n) const {
    float most = 0;
    bool nan = false;
#pragma unroll 4
    for (int i = int(threadIdx.x); i < n; i += kRowThreads) {
      const float w = Weight(i);
      nan |= isnan(w);
      most = w > most ? w : most;
    }
    most = BlockMax(most);
    return __syncthreads_or(nan) ? nanf("") : most;
  }
};

// -1: no token.
template <class T>
__device__ int64_t DrawToken(Team<false>& team, const T* p, const T* q, int vocab, double u) {
  Residual<T> w = {p, q, 0};
  float most = w.Largest(vocab);
  if (most == 0 && q) {
    w.q = nullptr;
    most = w.Largest(vocab);
  }
  if (!(most > 0 && most < HUGE_VALF)) return -1;
  w.shift = 39 - ilogbf(most);
  return Draw(team, w, vocab, {}, u);
}

// 2 i: draft i is rejected; 2 i + 1: it is undecided; more than 2 n: it is accepted.
template <class T>
__device__ uint32_t Verdict(const Chains& c, int64_t row, int64_t i) {
  const int64_t id = LoadIndex(c.ids, row * c.n + i, c.wide_ids);
  if (id < 0 || id >= c.vocab) return uint32_t(2 * i + 1);
  const double q = ToFloat(static_cast<const T*>(c.draft)[(row * c.n + i) * c.vocab + id]);
  const double p = ToFloat(static_cast<const T*>(c.target)[(row * (c.n + 1) + i) * c.vocab + id]);
  if (isnan(q) || isnan(p)) return uint32_t(2 * i + 1);
  return c.DrawOf(row, i, 0) * q < p ? 0xffffffffu : uint32_t(2 * i);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) Speculate(const Chains c) {
  Team<false> team;
  for (int64_t row = blockIdx.x; row < c.b; row += gridDim.x) {
    uint32_t verdict = uint32_t(2 * c.n);
    for (int64_t i = threadIdx.x; i < c.n; i += kRowThreads) {
      const uint32_t mine = Verdict<T>(c, row, i);
      verdict = mine < verdict ? mine : verdict;
    }
    verdict = BlockMin(verdict);
    const int64_t count = verdict / 2;
    const T* p = static_cast<const T*>(c.target) + (row * (c.n + 1) + count) * c.vocab;
    const T* q = count < c.n ? static_cast<const T*>(c.draft) + (row * c.n + count) * c.vocab : nullptr;
    const int64_t token = verdict % 2 == 1 ? -1 : DrawToken(team, p, q, int(c.vocab), c.DrawOf(row, count, 1));
    for (int64_t i = threadIdx.x; i <= c.n; i += kRowThreads) {
      const int64_t id = i < count ? LoadIndex(c.ids, row * c.n + i, c.wide_ids) : i == count ? token : -1;
      c.out[row * (c.n + 1) + i] = id;
    }
    if (threadIdx.x == 0) c.accepted[row] = count;
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &target = t[kTargetProbs];
  const Chains c = {.draft = Data<void>(t[kDraftProbs]),
                    .target = Data<void>(target),
                    .ids = Data<void>(t[kDraftTokenIds]),
                    .out = Data<int64_t>(t[kOutputTokenIds]),
                    .accepted = Data<int64_t>(t[kNumAccepted]),
                    .b = target.shape[0],
                    .n = target.shape[1] - 1,
                    .vocab = target.shape[2],
                    .seed = args->scalars[kSeed].value.i,
                    .offset = args->scalars[kOffset].value.i,
                    .uniform = Given(t[kUniform]) ? RowNumber(t[kUniform]) : RowNumber(),
                    .wide_ids = DTypeOf(t[kDraftTokenIds]) == DType::kI64};
  if (c.b == 0) return 0;
  constexpr int64_t kMaxBlocks = 1 << 16;
  const unsigned blocks = unsigned(c.b < kMaxBlocks ? c.b : kMaxBlocks);
  return WithCudaFloat(DTypeOf(target), [&](auto v) {
    Speculate<decltype(v)><<<blocks, kRowThreads, 0, static_cast<cudaStream_t>(args->stream)>>>(c);
    return Launched();
  });
}

// Strict mode asks for an error where a row has no answer: nobody waits for the device to see one.
constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"vocab", Rel::kLe, kMostElements},
    {"policy.strict_mode", Rel::kEq, 0},
});
constexpr std::array kFamily = {
    CudaSpec("cuda.sampling.speculative", &Launch,
             {.constraints = kConstraints, .accepts = kAcceptsAll, .strides = Strides::kContiguous})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
