// One element of mlp.linear.gguf as its definition has it, in FP64, of an input that is not rounded: what kernels call
// where a sum in FP32 may have left its range.
#pragma once

#include <cmath>

#include "core/view.h"
#include "ops/mlp/linear/gguf.h"

namespace lz::gguf {

// Rows of the input and columns of the output of one call with packed weights, without the bias.
class ExactSums {
 public:
  explicit ExactSums(const lz_kernel_args* args)
      : format_(args->scalars[ops::mlp_linear_gguf::kFormat].value.i),
        input_(args->tensors[ops::mlp_linear_gguf::kInput]),
        packed_(args->tensors[ops::mlp_linear_gguf::kPacked]) {}

  double At(int64_t row, int64_t column) const {
    using namespace ops::gguf;
    const auto byte = [&](int64_t at) { return int(uint8_t(packed_.GetInt({column / kGroupRows, at}))); };
    double sum = 0;
    for (int64_t i = 0, k = input_.size(-1); i < k; ++i) {
      const double x = input_.GetRow(row, i);
      if (std::isnan(x)) return x;  // rows of NaN alone would take long
      sum += x * Value<double>(format_, PackedAt(format_, k, column, i, byte));
    }
    return sum;
  }

 private:
  int64_t format_;
  View input_, packed_;
};

}  // namespace lz::gguf
