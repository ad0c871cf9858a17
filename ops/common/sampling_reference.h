// The FP64 reference of the sample_* operations over tensors: one loop for all filters.
#pragma once

#include <vector>

#include "core/view.h"
#include "ops/common/philox.h"
#include "ops/common/sampling_math.h"

namespace lz::sampling {

// The row's elements as double, any dtype and strides.
inline std::vector<double> ReadRow(const View& t, int64_t row) {
  std::vector<double> values(size_t(t.size(-1)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = t.GetRow(row, int64_t(i));
  return values;
}

// Element offset of the row-major index `row` over all axes of `t` (a tensor of the leading shape).
inline int64_t LeadOffset(const lz_tensor& t, int64_t row) {
  int64_t offset = 0;
  for (int i = t.ndim - 1; i >= 0; --i) {
    offset += (row % t.shape[i]) * t.strides[i];
    row /= t.shape[i];
  }
  return offset;
}

inline void SampleRows(const lz_tensor& logits, const lz_tensor& token, const Filters& filters, int64_t seed,
                       int64_t offset) {
  const View x(logits), out(token);
  for (int64_t row = 0; row < x.rows(); ++row) {
    const double u = PhiloxUniform(seed, offset, row, 0);
    out.StoreInt(LeadOffset(token, row), Row(ReadRow(x, row), filters).Draw(u));
  }
}

}  // namespace lz::sampling
