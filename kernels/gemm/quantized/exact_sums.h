// One element of mlp.linear.quantized as in its definition, in FP64: for sums of the GEMV kernels that may exceed the
// range of FP32.
#pragma once

#include <algorithm>

#include "kernels/gemm/exact_sums.h"
#include "ops/common/quantize_reference.h"
#include "ops/mlp/linear/quantized.h"

namespace lz::quantized {

// Rows of the input and columns of the output of one call, without the bias.
class ExactSums {
 public:
  explicit ExactSums(const lz_kernel_args* args)
      : format_(args->scalars[ops::mlp_linear_quantized::kFormat].value.i),
        pack_(ops::kQuantInfo[size_t(format_)].pack),
        shape_(ops::QuantShape::Of(tensor(args, ops::mlp_linear_quantized::kWeight), pack_)),
        input_tensor_(tensor(args, ops::mlp_linear_quantized::kInput)),
        codes_(tensor(args, ops::mlp_linear_quantized::kWeight)),
        packed_(tensor(args, ops::mlp_linear_quantized::kPacked)),
        scale_(tensor(args, ops::mlp_linear_quantized::kWeightScale)),
        zero_(tensor(args, ops::mlp_linear_quantized::kZeroPoint)),
        outer_(tensor(args, ops::mlp_linear_quantized::kTensorScale)),
        outer_tensor_(tensor(args, ops::mlp_linear_quantized::kTensorScale)),
        scales_(shape_, tensor(args, ops::mlp_linear_quantized::kWeightScale), std::nullopt),
        zeros_(shape_, tensor(args, ops::mlp_linear_quantized::kZeroPoint), std::nullopt) {
    const bool finite_codes = ops::IsInteger(format_) || pack_ == 2;
    if (finite_codes && scale_.size(1) > 0) step_ = std::max<int64_t>(1, shape_.size[1] / scale_.size(1));
  }

  // found: the result in FP32.
  double At(int64_t row, int64_t column, float found) const {
    return gemm::ExactSum(input_tensor_, row, found, step_, [&](int64_t i) { return double(Weight(column, i)); });
  }

 private:
  static const lz_tensor& tensor(const lz_kernel_args* args, int which) { return args->tensors[which]; }
  double Weight(int64_t row, int64_t column) const {
    const int64_t index[] = {row, column};
    const int64_t zero = zero_.given() ? zero_.LoadInt(zeros_.Offset(index)) : 0;
    const float value =
        ops::CodeValue(format_, Code(row, column), zero) * ops::ScaleValue(scale_, scales_.Offset(index));
    return outer_.given() ? value * float(outer_.Load(ops::OffsetOf(outer_tensor_, index))) : value;
  }
  uint8_t Code(int64_t row, int64_t column) const {
    if (!packed_.given()) return ops::LoadCode(codes_, row * codes_.stride(0), column, pack_);
    const int64_t byte = packed_.GetInt({row, column / 32 * 16 + column % 16});
    return uint8_t(byte >> (column % 32 < 16 ? 0 : 4) & 15);
  }

  int64_t format_, pack_;
  ops::QuantShape shape_;
  const lz_tensor& input_tensor_;
  View codes_, packed_, scale_, zero_, outer_;
  const lz_tensor& outer_tensor_;
  ops::ScaleIndex scales_, zeros_;
  int64_t step_ = 1;  // checking one weight in `step_` is enough to find whether all are finite
};

}  // namespace lz::quantized
