// Chain speculative sampling, CPU SIMD: drafts are judged in FP64; one row of weights per sequence is summed
// and sampled.
//   draft_probs [b, n, vocab], target_probs [b, n + 1, vocab] f32|f16|bf16     draft_token_ids [b, n] i32|i64
//   output_token_ids [b, n + 1], num_accepted [b] i64; all contiguous, nothing aliases
// Workspace: 36 bytes per vocabulary entry for each sequence that runs at once. Deterministic. Source: own; algorithm 1
// of arXiv:2211.17192. Weights in FP32, sums in FP64 over blocks of 1024.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/speculative/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <atomic>

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/sampling/common/vectors.h"
#include "kernels/sampling/common/workspace.h"
#include "kernels/spec.h"
#include "ops/common/sampling_args.h"
#include "ops/sampling/speculative.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::sampling_speculative;

struct Chain {
  int64_t n;
  int64_t vocab;
  sampling::Draws draws;
};

// The token at a position: from max(p - q, 0), or from p if q is null or the residual has no mass; -1 if p has none.
template <class T>
int64_t DrawToken(const T* p, const T* q, int64_t vocab, double u, const RowWorkspace& ws) {
  const sampler::Tag d;
  double total = 0;
  if (q) {
    total = sampler::FillWeights(d, vocab, ws.w, ws.blocks, [&](int64_t i) HWY_ATTR {
      return AtLeast(hn::Zero(d),
                     hn::Sub(sampler::LoadUpTo(d, p, i, vocab, 0.0f), sampler::LoadUpTo(d, q, i, vocab, 0.0f)));
    });
  }
  if (total == 0) {
    total = sampler::FillWeights(d, vocab, ws.w, ws.blocks,
                                 [&](int64_t i) HWY_ATTR { return sampler::LoadUpTo(d, p, i, vocab, 0.0f); });
  }
  if (!(total > 0) || std::isinf(total)) return -1;
  return sampler::Draw(ws.w, vocab, ws.blocks, total, u);
}

// One sequence; returns the number of accepted drafts.
template <class T, class Id>
int64_t Row(const Chain& c, int64_t r, const T* draft, const Id* ids, const T* target, int64_t* out,
            const RowWorkspace& ws) {
  int64_t i = 0;
  bool undecided = false;
  for (; i < c.n; ++i) {
    const int64_t t = int64_t(ids[i]);
    undecided = t < 0 || t >= c.vocab;
    if (undecided) break;
    const double q = ToFloat(draft[i * c.vocab + t]), p = ToFloat(target[i * c.vocab + t]);
    undecided = std::isnan(q) || std::isnan(p);
    if (undecided || !(c.draws.Accepting(r, i) * q < p)) break;
    out[i] = t;
  }
  const double u = c.draws.Drawing(r, i);
  const T* q = i < c.n ? draft + i * c.vocab : nullptr;
  out[i] = undecided ? -1 : DrawToken(target + i * c.vocab, q, c.vocab, u, ws);
  std::fill(out + i + 1, out + c.n + 1, int64_t{-1});
  return i;
}

template <class T, class Id>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor& target = args->tensors[kTargetProbs];
  const Chain c = {target.shape[1] - 1, target.shape[2], sampling::Draws(kContract, *args)};
  if (!c.draws.Valid()) return LZ_LAUNCH_INVALID_DATA;
  const T *pd = Data<const T>(args->tensors[kDraftProbs]), *pt = Data<const T>(target);
  const Id* ids = Data<const Id>(args->tensors[kDraftTokenIds]);
  int64_t* out = Data<int64_t>(args->tensors[kOutputTokenIds]);
  int64_t* accepted = Data<int64_t>(args->tensors[kNumAccepted]);
  std::atomic<bool> answered = true;
  const int32_t code = ParallelRows(args, target.shape[0], c.vocab, [&](int64_t r, const RowWorkspace& ws) {
    int64_t* tokens = out + r * (c.n + 1);
    accepted[r] = Row(c, r, pd + r * c.n * c.vocab, ids + r * c.n, pt + r * (c.n + 1) * c.vocab, tokens, ws);
    if (tokens[accepted[r]] < 0) answered.store(false, std::memory_order_relaxed);
  });
  return code != 0 ? code : sampling::Outcome(*args, answered);
}

int32_t Launch(const lz_kernel_args* args) {
  const bool narrow = DTypeOf(args->tensors[kDraftTokenIds]) == DType::kI32;
  return WithFloatType(DTypeOf(args->tensors[kDraftProbs]), [&](auto t) {
    return narrow ? Run<decltype(t), int32_t>(args) : Run<decltype(t), int64_t>(args);
  });
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor& target = args->tensors[ops::sampling_speculative::kTargetProbs];
  return RowsWorkspaceBytes(args, target.shape[0], target.shape[2]);
}

constexpr std::array kFamily = {
    CpuSpec("hwy.sampling.speculative", &LaunchBest,
            {.accepts = kAcceptsAll, .strides = Strides::kContiguous, .workspace = &Workspace})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
