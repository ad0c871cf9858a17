// The sampling operations in FP64: the kept set, the token of a draw, and the other tokens that a kernel with rounding
// may return. A definition, not fast: rows are sorted.
//   auto row = Row(logits_row, {.temperature = 0.7, .k = 50});  int64_t token = row.Draw(u);
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace lz::sampling {

// Filters apply in this order, each to what the previous one left: k, p, min_p.
struct Filters {
  double temperature = 1;
  int64_t k = std::numeric_limits<int64_t>::max();  // keep the k largest logits, ties to the lower index
  double p = 1;      // keep the shortest prefix of the descending order (ties to the lower index) whose mass >= p
  double min_p = 0;  // keep probabilities >= min_p times the largest
};

// (logit - max) / temperature, computed from halves: no difference of finite halves is infinite.
inline double Exponent(double logit, double max, double temperature) { return (logit / 2 - max / 2) / temperature * 2; }

// One token's part of [0, 1): a draw u in [lo, hi) selects the token. lo == hi for tokens that are not kept.
struct Interval {
  double lo = 0;
  double hi = 0;
  bool kept = false;
};

class Row {
 public:
  Row(std::span<const double> logits, const Filters& filters) : filters_(filters), weights_(logits.size()) {
    double max = -std::numeric_limits<double>::infinity();
    bool nan = false;
    for (const double x : logits) {
      nan |= std::isnan(x);
      max = std::max(max, x);
    }
    valid_ = !nan && max > -std::numeric_limits<double>::infinity();
    if (!valid_) return;
    for (size_t i = 0; i < logits.size(); ++i) {
      weights_[i] = logits[i] == max ? 1.0 : std::exp(Exponent(logits[i], max, filters.temperature));
    }
    order_.resize(logits.size());
    std::iota(order_.begin(), order_.end(), int64_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
    order_.resize(size_t(std::min<int64_t>(filters.k, int64_t(order_.size()))));
  }

  // False if a logit is NaN, or none is above -inf; the result is then -1.
  bool valid() const { return valid_; }

  // The kept set as a mask, with p and min_p moved by the relative `slack` (negative: fewer tokens; positive: more).
  std::vector<bool> Kept(double slack = 0) const {
    std::vector<bool> kept(weights_.size());
    double total = 0, before = 0;
    for (const int64_t i : order_) total += weights_[i];
    const double p = filters_.p * (1 + slack), min_p = filters_.min_p * (1 - slack);
    for (size_t rank = 0; rank < order_.size(); ++rank) {
      const double w = weights_[order_[rank]];
      if (rank > 0 && ((p < 1 && before >= p * total) || w < min_p)) break;
      kept[order_[rank]] = true;
      before += w;
    }
    return kept;
  }

  // The token's interval among the tokens that `slack` keeps.
  Interval IntervalOf(int64_t token, double slack = 0) const {
    if (!valid_ || token < 0 || token >= int64_t(weights_.size())) return {};
    const std::vector<bool> kept = Kept(slack);
    double total = 0, lo = 0;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (int64_t(i) == token) lo = total;
      if (kept[i]) total += weights_[i];
    }
    const bool is_kept = kept[token];
    return {lo / total, (lo + (is_kept ? weights_[token] : 0)) / total, is_kept};
  }

  // First index whose running kept weight exceeds u * total; -1 if the row is not valid.
  int64_t Draw(double u) const {
    if (!valid_) return -1;
    const std::vector<bool> kept = Kept();
    double total = 0, sum = 0;
    for (size_t i = 0; i < kept.size(); ++i) total += kept[i] ? weights_[i] : 0;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i]) continue;
      sum += weights_[i];
      if (sum > u * total) return int64_t(i);
    }
    return -1;  // unreachable: the last sum is the total, and u * total < total
  }

  // True if a kernel may return `token` for the draw u. Rounding moves two things: the boundary of the kept set (p or
  // min_p by a relative epsilon) and the token's interval. If several tokens are between the sets of p (1 - epsilon)
  // and p (1 + epsilon), their total weight is below 2 epsilon, so the two extremes and the exact set represent all
  // sets in between.
  bool Accepts(double u, int64_t token, double epsilon) const {
    if (!valid_) return token == -1;
    for (const double slack : {0.0, -epsilon, epsilon}) {
      const Interval i = IntervalOf(token, slack);
      if (i.kept && u >= i.lo - 4 * epsilon && u < i.hi + 4 * epsilon) return true;
    }
    return false;
  }

 private:
  Filters filters_;
  bool valid_ = false;
  std::vector<double> weights_;  // exp((x - max) / temperature), vocabulary order
  std::vector<int64_t> order_;   // descending logits, ties by index, at most k
};

}  // namespace lz::sampling
