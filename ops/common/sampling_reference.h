// The FP64 reference of the sample_* operations over tensors: one loop for all filters.
#pragma once

#include <vector>

#include "core/view.h"
#include "ops/common/sampling_args.h"

namespace lz::sampling {

// The row's elements as double, any dtype and strides.
inline std::vector<double> ReadRow(const View& t, int64_t row) {
  std::vector<double> values(size_t(t.size(-1)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = t.GetRow(row, int64_t(i));
  return values;
}

inline int32_t SampleRows(const Contract& contract, const lz_kernel_args* args) {
  const SampleArguments call(contract, *args);
  const View x(call.logits), out(call.token);
  if (!call.draws.Valid()) return LZ_LAUNCH_INVALID_DATA;
  bool answered = true;
  for (int64_t row = 0; row < x.rows(); ++row) {
    const std::optional<Filters> filters = call.FiltersOf(row);
    if (!filters) return LZ_LAUNCH_INVALID_DATA;
    const int64_t token = Row(ReadRow(x, row), *filters).Draw(call.draws.OfRow(row));
    out.StoreInt(ElementOffset(call.token, row), token);
    answered &= token >= 0;
  }
  return Outcome(*args, answered);
}

}  // namespace lz::sampling
