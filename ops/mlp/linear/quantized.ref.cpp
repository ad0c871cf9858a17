// Reference of mlp.linear.quantized: weights dequantized one by one, FP64 sums; any strides, any float dtype.
#include "ops/mlp/linear/quantized.h"

#include "ops/common/quantize_reference.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;

class Weights {
 public:
  explicit Weights(const lz_kernel_args* args)
      : format_(args->scalars[kFormat].value.i),
        pack_(kQuantInfo[size_t(format_)].pack),
        shape_(QuantShape::Of(args->tensors[kWeight], pack_)),
        codes_(args->tensors[kWeight]),
        packed_(args->tensors[kPacked]),
        scale_(args->tensors[kWeightScale]),
        zero_(args->tensors[kZeroPoint]),
        tensor_scale_(args->tensors[kTensorScale]),
        tensor_scale_tensor_(args->tensors[kTensorScale]),
        scales_(shape_, args->tensors[kWeightScale], std::nullopt),
        zeros_(shape_, args->tensors[kZeroPoint], std::nullopt) {}

  double At(int64_t row, int64_t column) const {
    const int64_t index[] = {row, column};
    const uint8_t code = Code(row, column);
    const int64_t zero = zero_.given() ? zero_.LoadInt(zeros_.Offset(index)) : 0;
    const float value = CodeValue(format_, code, zero) * ScaleValue(scale_, scales_.Offset(index));
    if (!tensor_scale_.given()) return value;
    return value * float(tensor_scale_.Load(OffsetOf(tensor_scale_tensor_, index)));
  }

 private:
  uint8_t Code(int64_t row, int64_t column) const {
    if (!packed_.given()) return LoadCode(codes_, row * codes_.stride(0), column, pack_);
    const int64_t byte = packed_.GetInt({row, column / 32 * 16 + column % 16});
    return uint8_t(byte >> (column % 32 < 16 ? 0 : 4) & 15);
  }

  int64_t format_, pack_;
  QuantShape shape_;
  View codes_, packed_, scale_, zero_, tensor_scale_;
  const lz_tensor& tensor_scale_tensor_;
  ScaleIndex scales_, zeros_;
};

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), bias(args->tensors[kBias]), out(args->tensors[kOutput]);
  const Weights weights(args);
  const int64_t n = out.size(-1), k = x.size(-1), rows = out.rows();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += x.GetRow(row, i) * weights.At(column, i);
      out.SetRow(row, column, sum + (bias.given() ? bias.Get({column}) : 0.0));
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.mlp.linear.quantized", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
