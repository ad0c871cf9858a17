// One element of mlp.linear.gguf as in its definition, in FP64, from an input that is not rounded: for sums that may
// exceed the range of FP32.
#pragma once

#include "core/view.h"
#include "kernels/gemm/exact_sums.h"
#include "ops/mlp/linear/gguf.h"

namespace lz::gguf {

// Rows of the input and columns of the output of one call with packed weights, without the bias.
class ExactSums {
 public:
  explicit ExactSums(const lz_kernel_args* args)
      : format_(args->scalars[ops::mlp_linear_gguf::kFormat].value.i),
        input_(args->tensors[ops::mlp_linear_gguf::kInput]),
        packed_(args->tensors[ops::mlp_linear_gguf::kPacked]) {}

  // found: the result in FP32.
  double At(int64_t row, int64_t column, float found) const {
    using namespace ops::gguf;
    constexpr int64_t kScaled = 16;  // least number of values with one scale
    const auto byte = [&](int64_t at) { return int(uint8_t(packed_.GetInt({column / kGroupRows, at}))); };
    const int64_t k = input_.shape[input_.ndim - 1];
    return gemm::ExactSum(input_, row, found, kScaled,
                          [&](int64_t i) { return Value<double>(format_, PackedAt(format_, k, column, i, byte)); });
  }

 private:
  int64_t format_;
  const lz_tensor& input_;
  View packed_;
};

}  // namespace lz::gguf
