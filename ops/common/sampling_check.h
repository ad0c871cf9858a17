// Comparison of sampled tokens (Compare::kToken) with FP64, which a conformance run calls for each row of a result.
//   for (row ...) if (!sampling::RowAgrees(contract, args, row, contract.tolerance.f32)) ...
// `args` are a call's arguments with the outputs of the kernel under test; no reference run is needed.
#pragma once

#include <string_view>

#include "core/contract.h"
#include "ops/common/sampling_reference.h"
#include "ops/common/speculative_math.h"

namespace lz::sampling {

// sample_*: the token must be one that rounding by epsilon can produce: Row::Accepts.
inline bool TokenAgrees(const Contract& contract, const lz_kernel_args& args, int64_t row, double epsilon) {
  const SampleArguments call(contract, args);
  const std::optional<Filters> filters = call.FiltersOf(row);
  const int64_t token = View(call.token).LoadInt(ElementOffset(call.token, row));
  return filters && Row(ReadRow(View(call.logits), row), *filters).Accepts(call.draws.OfRow(row), token, epsilon);
}

// speculative_sample: acceptance may differ from FP64 only if both sides of its comparison are within epsilon; the
// drawn token's interval must contain the draw within epsilon; everything else is exact.
inline bool ChainAgrees(const Contract& contract, const lz_kernel_args& args, int64_t row, double epsilon) {
  const ChainArgs a = {View(args.tensors[0]), View(args.tensors[1]), View(args.tensors[2]), Draws(contract, args)};
  const View out(args.tensors[4]), accepted(args.tensors[5]);
  const int64_t n = a.ids.size(1), count = accepted.GetInt({row});
  if (count < 0 || count > n) return false;
  double margin;
  for (int64_t i = 0; i < count; ++i) {
    const Verdict v = Judge(a, row, i, &margin);
    if (v == Verdict::kUndecided || (v == Verdict::kRejected && margin > epsilon)) return false;
    if (out.GetInt({row, i}) != a.ids.GetInt({row, i})) return false;
  }
  for (int64_t i = count + 1; i <= n; ++i) {
    if (out.GetInt({row, i}) != -1) return false;
  }
  const int64_t token = out.GetInt({row, count});
  if (count < n) {
    const Verdict v = Judge(a, row, count, &margin);
    if (v == Verdict::kUndecided) return token == -1;
    if (v == Verdict::kAccepted && margin > epsilon) return false;
  }
  const std::vector<double> w = ChainWeights(a, row, count);
  const double u = ChainDraw(a, row, count);
  const int64_t exact = DrawFrom(w, u);
  if (token == exact) return true;
  if (exact == -1 || token < 0 || token >= int64_t(w.size()) || !(w[token] > 0)) return false;
  double total = 0, lo = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    if (int64_t(i) == token) lo = total;
    total += w[i];
  }
  return u >= lo / total - 4 * epsilon && u < (lo + w[token]) / total + 4 * epsilon;
}

inline bool RowAgrees(const Contract& contract, const lz_kernel_args& args, int64_t row, double epsilon) {
  return contract.name == "speculative_sample" ? ChainAgrees(contract, args, row, epsilon)
                                               : TokenAgrees(contract, args, row, epsilon);
}
// The number of rows to check with RowAgrees.
inline int64_t NumSampledRows(const Contract& contract, const lz_kernel_args& args) {
  return contract.name == "speculative_sample" ? args.tensors[0].shape[0] : View(args.tensors[0]).rows();
}

}  // namespace lz::sampling
