// Reference of sampling.speculative: FP64, any strides, any float dtype.
#include "ops/sampling/speculative.h"

#include "ops/common/reference.h"
#include "ops/common/sampling_args.h"
#include "ops/common/speculative_math.h"

namespace {
using namespace lz;
using namespace lz::ops::sampling_speculative;

int32_t Launch(const lz_kernel_args* args) {
  const sampling::ChainArgs a = {View(args->tensors[kDraftProbs]), View(args->tensors[kDraftTokenIds]),
                                 View(args->tensors[kTargetProbs]), sampling::Draws(kContract, *args)};
  if (!a.draws.Valid()) return LZ_LAUNCH_INVALID_DATA;
  const View out(args->tensors[kOutputTokenIds]), accepted(args->tensors[kNumAccepted]);
  const int64_t n = a.ids.size(1);
  bool answered = true;
  for (int64_t r = 0; r < a.ids.size(0); ++r) {
    int64_t i = 0;
    double margin;
    sampling::Verdict verdict = sampling::Verdict::kAccepted;
    for (; i < n; ++i) {
      verdict = sampling::Judge(a, r, i, &margin);
      if (verdict != sampling::Verdict::kAccepted) break;
      out.SetInt({r, i}, a.ids.GetInt({r, i}));
    }
    const bool undecided = verdict == sampling::Verdict::kUndecided;
    accepted.SetInt({r}, i);
    const int64_t token =
        undecided ? -1 : sampling::DrawFrom(sampling::ChainWeights(a, r, i), sampling::ChainDraw(a, r, i));
    out.SetInt({r, i}, token);
    answered &= token >= 0;
    for (++i; i <= n; ++i) out.SetInt({r, i}, -1);
  }
  return sampling::Outcome(*args, answered);
}

constexpr std::array kFamily = {ReferenceKernel("ref.sampling.speculative", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
