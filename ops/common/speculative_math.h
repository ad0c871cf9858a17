// Chain speculative sampling in FP64, position by position: the reference runs it, the token check replays it.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/view.h"
#include "ops/common/sampling_args.h"

namespace lz::sampling {

struct ChainArgs {
  View draft;   // [b, n, vocab]
  View ids;     // [b, n]
  View target;  // [b, n + 1, vocab]
  Draws draws;
};

enum class Verdict { kAccepted, kRejected, kUndecided };

// Judges draft i of row r. `margin` is the difference of the two sides of the comparison, relative to q[t].
inline Verdict Judge(const ChainArgs& a, int64_t r, int64_t i, double* margin) {
  *margin = 1;
  const int64_t t = a.ids.GetInt({r, i});
  if (t < 0 || t >= a.draft.size(2)) return Verdict::kUndecided;
  const double q = a.draft.Get({r, i, t}), p = a.target.Get({r, i, t});
  if (std::isnan(q) || std::isnan(p)) return Verdict::kUndecided;
  const double uq = a.draws.Accepting(r, i) * q;
  *margin = q > 0 ? std::fabs(uq - p) / q : 1;
  return uq < p ? Verdict::kAccepted : Verdict::kRejected;
}

// The weights for drawing the token at position i: the residual (i < n, after a rejection) or the target's row.
inline std::vector<double> ChainWeights(const ChainArgs& a, int64_t r, int64_t i) {
  std::vector<double> w(size_t(a.target.size(2)));
  const bool bonus = i == a.ids.size(1);
  double residual = 0;
  for (size_t v = 0; v < w.size(); ++v) {
    const double p = a.target.Get({r, i, int64_t(v)}), q = bonus ? 0 : a.draft.Get({r, i, int64_t(v)});
    w[v] = p - q > 0 || std::isnan(p - q) ? p - q : 0;
    residual += w[v];
  }
  if (residual == 0 && !bonus) {
    for (size_t v = 0; v < w.size(); ++v) w[v] = a.target.Get({r, i, int64_t(v)});
  }
  return w;
}

// First index whose running sum exceeds u * total; -1 if the total is not a positive finite number.
inline int64_t DrawFrom(const std::vector<double>& w, double u) {
  double total = 0, sum = 0;
  for (const double x : w) total += x;
  if (!(total > 0) || std::isinf(total)) return -1;
  for (size_t i = 0; i < w.size(); ++i) {
    sum += w[i];
    if (sum > u * total) return int64_t(i);
  }
  return -1;  // unreachable
}

inline double ChainDraw(const ChainArgs& a, int64_t r, int64_t i) { return a.draws.Drawing(r, i); }

}  // namespace lz::sampling
