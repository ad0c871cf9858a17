// moe.route, CPU: a row's scores in FP64, then its best groups and experts by partial sorts.
//   logits [..., experts], bias [experts]  any float dtype, any strides, at most 1024 experts
//   weights [..., k] f32     expert_ids [..., k] i32
// Workspace: none; 32 KiB of stack. Deterministic: a row's own arithmetic, in the order of the definition. Source: own;
// definition in ops/moe/route.h.
#include "ops/moe/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/kernel.h"
#include "core/view.h"
#include "kernels/launch.h"
#include "kernels/spec.h"

namespace {
using namespace lz;
using namespace lz::ops::moe_route;

constexpr int64_t kMostExperts = 1024;

// NaN before numbers, larger values before smaller ones, of equal ones the lower index.
struct Better {
  const double* values;
  bool operator()(int32_t a, int32_t b) const {
    const double x = values[a], y = values[b];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(x);
    return x > y || (!(x < y) && a < b);
  }
};

// The state of one row at a time.
class Row {
 public:
  explicit Row(const lz_kernel_args* args)
      : s_(args->scalars), logits_(args->tensors[kLogits]), bias_(args->tensors[kBias]), experts_(logits_.size(-1)) {}

  // Selects experts, the best first, into order()[0, k).
  void Choose(int64_t row) {
    const int64_t offset = logits_.RowOffset(row);
    for (int64_t e = 0; e < experts_; ++e) score_[e] = logits_.Load(offset + e * logits_.stride(-1));
    if (s_[kScoring].value.i == kSparsemixer) return ChooseSparsely();
    Score();
    for (int64_t e = 0; e < experts_; ++e) choice_[e] = score_[e] + (bias_.given() ? bias_.Get({e}) : 0.0);
    const int64_t left = s_[kNumGroups].value.i > 1 ? ExpertsOfBestGroups() : experts_;
    if (left == experts_) std::iota(order_, order_ + experts_, 0);
    std::partial_sort(order_, order_ + s_[kK].value.i, order_ + left, Better{choice_});
  }
  const int32_t* order() const { return order_; }
  double score(int32_t expert) const { return score_[expert]; }

 private:
  // Selects one after the other, each weighted by a softmax over it and the remaining ones that are near it.
  void ChooseSparsely() {
    const int64_t k = s_[kK].value.i;
    const double limit = 2 * s_[kJitter].value.f;
    std::iota(order_, order_ + experts_, 0);
    std::partial_sort(order_, order_ + k, order_ + experts_, Better{score_});
    for (int64_t i = 0; i < k; ++i) {
      const double m = score_[order_[i]];
      double sum = 0;
      for (int64_t j = i; j < experts_; ++j) {
        const double x = score_[order_[j]];
        const bool far = (m - x) / std::max(std::fabs(x), m) > limit;
        if (!far) sum += std::exp(x - m);
      }
      choice_[order_[i]] = 1 / sum;
    }
    for (int64_t i = 0; i < k; ++i) score_[order_[i]] = choice_[order_[i]];
  }

  void Score() {
    double* const end = score_ + experts_;
    if (s_[kScoring].value.i == kSigmoid) {
      std::transform(score_, end, score_, [](double x) { return 1.0 / (1.0 + std::exp(-x)); });
    } else if (s_[kScoring].value.i == kSqrtSoftplus) {
      std::transform(score_, end, score_, [](double x) {
        return std::isnan(x) ? x : std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))));
      });
    } else {
      double max = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t e = 0; e < experts_; ++e) max = std::max(max, score_[e]);  // skips NaN
      for (int64_t e = 0; e < experts_; ++e) sum += score_[e] = std::exp(score_[e] - max);
      for (int64_t e = 0; e < experts_; ++e) score_[e] /= sum;
    }
  }

  // Puts them into order_, ascending, and returns how many there are.
  int64_t ExpertsOfBestGroups() {
    const int64_t groups = s_[kNumGroups].value.i, size = experts_ / groups, kept = s_[kTopGroups].value.i;
    const int64_t summed = s_[kGroupScore].value.i == kMax ? 1 : std::min<int64_t>(2, size);
    for (int64_t g = 0; g < groups; ++g) {
      std::iota(order_, order_ + size, int32_t(g * size));
      std::partial_sort(order_, order_ + summed, order_ + size, Better{choice_});
      group_[g] = choice_[order_[0]] + (summed > 1 ? choice_[order_[1]] : 0.0);
    }
    int32_t best[kMostExperts];
    std::iota(best, best + groups, 0);
    std::partial_sort(best, best + kept, best + groups, Better{group_});
    std::sort(best, best + kept);
    for (int64_t i = 0; i < kept; ++i) std::iota(order_ + i * size, order_ + (i + 1) * size, int32_t(best[i] * size));
    return kept * size;
  }

  const lz_scalar* s_;
  View logits_, bias_;
  int64_t experts_;
  double score_[kMostExperts], choice_[kMostExperts], group_[kMostExperts];
  int32_t order_[kMostExperts];
};

int32_t Launch(const lz_kernel_args* args) {
  const View weights(args->tensors[kWeights]), ids(args->tensors[kExpertIds]);
  const lz_scalar* s = args->scalars;
  const int64_t k = s[kK].value.i, experts = View(args->tensors[kLogits]).size(-1);
  // 2048 scores take about 20 us on one core: fewer do not pay for waking another thread.
  ParallelFor(args, ids.rows(), 2048 / (experts + 1) + 1, [&](int64_t begin, int64_t end) {
    Row row(args);
    for (int64_t r = begin; r < end; ++r) {
      row.Choose(r);
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += row.score(row.order()[i]);
      sum = std::max(sum, s[kMinSum].value.f);
      const double divisor = s[kRenormalize].value.i && sum != 0 ? sum : 1;  // a sum of 0 has only zero terms
      for (int64_t i = 0; i < k; ++i) {
        ids.StoreInt(ids.RowOffset(r) + i * ids.stride(-1), row.order()[i]);
        weights.SetRow(r, i, row.score(row.order()[i]) / divisor * s[kScale].value.f);
      }
    }
  });
  return 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({{"experts", Rel::kLe, kMostExperts}});

constexpr std::array kFamily = {
    CpuSpec("cpu.moe.route", &Launch,
            {.dtypes = kFloats, .constraints = kConstraints, .accepts = kAcceptsAll, .strides = Strides::kAny})};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
