#include "perfdb/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace lz::perfdb {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kMostPairs = 400;       // beyond them the first ones count
constexpr double kMostSubsets = 50'000;  // that are all tried
constexpr double kUnserved = 1000;       // times the best: what a call costs that none of the chosen kernels serves

// P(W <= w) of Wilcoxon's signed-rank statistic of n pairs, for w = 0 ... n (n + 1) / 2.
std::vector<double> SignedRankCdf(size_t n) {
  std::vector<double> ways(n * (n + 1) / 2 + 1, 0);
  ways[0] = 1;
  for (size_t rank = 1; rank <= n; ++rank) {
    for (size_t w = ways.size(); w-- > rank;) ways[w] = (ways[w] + ways[w - rank]) / 2;
    for (size_t w = 0; w < rank; ++w) ways[w] /= 2;
  }
  std::partial_sum(ways.begin(), ways.end(), ways.begin());
  return ways;
}

double LossOf(std::span<const double> us, std::span<const double> weights, size_t n,
              const std::vector<size_t>& chosen) {
  double loss = 0, total = 0;
  for (size_t call = 0; call < weights.size(); ++call) {
    const std::span<const double> row = us.subspan(call * n, n);
    const double fastest = *std::ranges::min_element(row);
    double mine = kUnserved * fastest;
    for (size_t kernel : chosen) mine = std::min(mine, row[kernel]);
    loss += weights[call] * (mine / fastest - 1);
    total += weights[call];
  }
  return total > 0 ? loss / total : 0;
}

// The next k of n numbers in lexicographic order; false after the last.
bool NextSubset(std::vector<size_t>* chosen, size_t n) {
  const size_t k = chosen->size();
  for (size_t at = k; at-- > 0;) {
    if ((*chosen)[at] == n - k + at) continue;
    ++(*chosen)[at];
    for (size_t later = at + 1; later < k; ++later) (*chosen)[later] = (*chosen)[later - 1] + 1;
    return true;
  }
  return false;
}

double Subsets(size_t n, size_t k) {
  double count = 1;
  for (size_t i = 0; i < k; ++i) count = count * double(n - i) / double(i + 1);
  return count;
}

}  // namespace

Ratio PairedRatio(std::span<const double> a, std::span<const double> b) {
  const size_t n = std::min({a.size(), b.size(), kMostPairs});
  if (n == 0) return {.high = kInfinity};
  std::vector<double> logs(n), walsh;
  for (size_t i = 0; i < n; ++i) logs[i] = std::log(a[i] / b[i]);
  walsh.reserve(n * (n + 1) / 2);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i; j < n; ++j) walsh.push_back((logs[i] + logs[j]) / 2);
  }
  std::ranges::sort(walsh);
  const std::vector<double> cdf = SignedRankCdf(n);
  size_t skipped = 0;  // averages outside of the interval, on each side
  while (skipped + 1 < walsh.size() / 2 && cdf[skipped + 1] <= 0.025) ++skipped;
  const size_t middle = walsh.size() / 2;
  const double center = walsh.size() % 2 ? walsh[middle] : (walsh[middle - 1] + walsh[middle]) / 2;
  // The statistic of "below 1" is the number of averages above 0; ties count half.
  const auto above = size_t(std::ranges::count_if(walsh, [](double w) { return w > 0; }));
  const auto ties = size_t(std::ranges::count(walsh, 0.0));
  return {std::exp(center), std::exp(walsh[skipped]), std::exp(walsh[walsh.size() - 1 - skipped]),
          1 - cdf[above + ties / 2]};
}

double SpreadOf(std::span<const double> first, std::span<const double> again) {
  const Ratio same = PairedRatio(again, first);
  return std::max(std::fabs(same.value - 1), (same.high - same.low) / 2);
}

bool Replaces(const Ratio& ratio, double spread, double least) {
  return ratio.high < 1 && 1 / ratio.value - 1 > std::max(least, 2 * spread);
}

std::vector<size_t> Survivors(std::span<const double> us, size_t kept, double limit, size_t least) {
  std::vector<size_t> order(us.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return us[i]; });
  const double bound = order.empty() ? 0 : us[order.front()] * limit;
  const size_t most = std::max(least, (us.size() + 1) / 2);
  std::vector<size_t> stay;
  for (size_t i : order) {
    const bool fast = stay.size() < most && us[i] <= bound;
    if (fast || i == kept) stay.push_back(i);
  }
  return stay;
}

std::vector<size_t> MajorityOf(std::span<const double> distances, size_t n, double bound) {
  std::vector<size_t> largest;
  for (size_t i = 0; i < n; ++i) {
    std::vector<size_t> group;
    for (size_t j = 0; j < n; ++j) {
      if (i == j || distances[i * n + j] <= bound) group.push_back(j);
    }
    if (group.size() > largest.size()) largest = std::move(group);
  }
  const bool wins = largest.size() > 1 && 2 * largest.size() > n;
  return wins ? largest : std::vector<size_t>();
}

Variants BestVariants(std::span<const double> us, std::span<const double> weights, size_t n, size_t k) {
  k = std::min(k, n);
  std::vector<size_t> chosen;
  Variants best{{}, kInfinity};
  const auto consider = [&](const std::vector<size_t>& set) {
    const double loss = LossOf(us, weights, n, set);
    if (best.kernels.empty() || loss < best.loss) best = {set, loss};
  };
  if (Subsets(n, k) <= kMostSubsets) {
    for (size_t i = 0; i < k; ++i) chosen.push_back(i);
    do consider(chosen);
    while (NextSubset(&chosen, n));
    return best;
  }
  while (best.kernels.size() < k) {
    const std::vector<size_t> before = best.kernels;
    best = {{}, kInfinity};
    for (size_t i = 0; i < n; ++i) {
      if (std::ranges::find(before, i) != before.end()) continue;
      chosen = before;
      chosen.push_back(i);
      consider(chosen);
    }
  }
  for (bool better = true; better;) {  // exchanges of one kernel
    better = false;
    for (size_t at = 0; at < k && !better; ++at) {
      for (size_t i = 0; i < n && !better; ++i) {
        if (std::ranges::find(best.kernels, i) != best.kernels.end()) continue;
        chosen = best.kernels;
        chosen[at] = i;
        better = LossOf(us, weights, n, chosen) < best.loss;
        if (better) consider(chosen);
      }
    }
  }
  std::ranges::sort(best.kernels);
  return best;
}

}  // namespace lz::perfdb
