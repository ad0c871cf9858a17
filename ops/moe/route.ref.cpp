// Reference of moe.route: FP64, any strides, any float dtype.
#include "ops/moe/route.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::moe_route;

std::vector<double> Scores(std::vector<double> x, int64_t scoring) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const double v : x) max = std::max(max, v);
  for (double& v : x) {
    if (scoring == kSoftmax) {
      sum += v = std::exp(v - max);
    } else if (scoring == kSigmoid) {
      v = 1.0 / (1.0 + std::exp(-v));
    } else {
      v = std::isnan(v) ? v : std::sqrt(std::max(v, 0.0) + std::log1p(std::exp(-std::fabs(v))));
    }
  }
  if (scoring == kSoftmax) {
    for (double& v : x) v /= sum;
  }
  return x;
}

// The indices of the k largest, the best first; NaN before numbers, ties to the lower index.
std::vector<int64_t> Top(std::span<const double> values, int64_t k) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double x = values[size_t(a)], y = values[size_t(b)];
    return std::isnan(x) ? !std::isnan(y) : x > y;
  });
  order.resize(size_t(std::min<int64_t>(k, int64_t(order.size()))));
  return order;
}

// The experts of the best groups, ascending.
std::vector<int64_t> Candidates(std::span<const double> choice, const lz_scalar* s) {
  const size_t groups = size_t(s[kNumGroups].value.i), size = choice.size() / groups;
  std::vector<double> scores;
  for (size_t g = 0; g < groups; ++g) {
    double score = 0;
    const std::span<const double> group = choice.subspan(g * size, size);
    for (const int64_t e : Top(group, s[kGroupScore].value.i == kMax ? 1 : 2)) score += group[size_t(e)];
    scores.push_back(score);
  }
  std::vector<int64_t> best = Top(scores, s[kTopGroups].value.i), experts;
  std::sort(best.begin(), best.end());
  for (const int64_t g : best) {
    for (size_t e = 0; e < size; ++e) experts.push_back(int64_t(size_t(g) * size + e));
  }
  return experts;
}

// Weights of the experts `chosen` for these logits, one after the other.
std::vector<double> SparseWeights(const std::vector<double>& x, std::span<const int64_t> chosen, double jitter) {
  std::vector<double> weights(x.size());
  std::vector<bool> gone(x.size());
  for (const int64_t best : chosen) {
    const double m = x[size_t(best)];
    double sum = 0;
    for (size_t e = 0; e < x.size(); ++e) {
      const bool far = (m - x[e]) / std::max(std::fabs(x[e]), m) > 2 * jitter;
      if (!gone[e] && !far) sum += std::exp(x[e] - m);
    }
    weights[size_t(best)] = 1 / sum;
    gone[size_t(best)] = true;
  }
  return weights;
}

int32_t Launch(const lz_kernel_args* args) {
  const View logits(args->tensors[kLogits]), bias(args->tensors[kBias]);
  const View weights(args->tensors[kWeights]), ids(args->tensors[kExpertIds]);
  const lz_scalar* s = args->scalars;
  const int64_t k = s[kK].value.i;
  std::vector<double> x(size_t(logits.size(-1)));
  for (int64_t row = 0; row < ids.rows(); ++row) {
    for (size_t e = 0; e < x.size(); ++e) x[e] = logits.GetRow(row, int64_t(e));
    const bool sparse = s[kScoring].value.i == kSparsemixer;
    std::vector<double> score = sparse ? x : Scores(x, s[kScoring].value.i);
    std::vector<double> choice = score, left;
    for (size_t e = 0; bias.given() && e < x.size(); ++e) choice[e] += bias.Get({int64_t(e)});
    const std::vector<int64_t> candidates = Candidates(choice, s);
    for (const int64_t e : candidates) left.push_back(choice[size_t(e)]);
    const std::vector<int64_t> chosen = Top(left, k);
    if (sparse) score = SparseWeights(x, chosen, s[kJitter].value.f);
    double sum = 0;
    for (const int64_t i : chosen) sum += score[size_t(candidates[size_t(i)])];
    sum = std::max(sum, s[kMinSum].value.f);
    const double divisor = s[kRenormalize].value.i && sum != 0 ? sum : 1;  // a sum of 0 has only zero terms
    for (int64_t i = 0; i < k; ++i) {
      const int64_t e = candidates[size_t(chosen[size_t(i)])];
      ids.StoreInt(ids.RowOffset(row) + i * ids.stride(-1), e);
      weights.SetRow(row, i, score[size_t(e)] / divisor * s[kScale].value.f);
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.moe.route", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
