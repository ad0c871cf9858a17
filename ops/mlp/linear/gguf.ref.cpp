// Reference of mlp.linear.gguf: weights dequantized one by one, FP64 sums; any strides, any float dtype.
#include "ops/mlp/linear/gguf.h"

#include <algorithm>
#include <cmath>

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear_gguf;

void RoundToInt8(double* a) {
  float amax = 0;
  bool finite = true;
  for (int64_t i = 0; i < kActivationBlock; ++i) {
    finite = finite && std::isfinite(a[i]);
    amax = std::max(amax, std::fabs(float(a[i])));
  }
  const float d = amax / 127.0f, inverse = amax < kLeastActivation ? 0.0f : 127.0f / amax;
  for (int64_t i = 0; i < kActivationBlock; ++i) {
    a[i] = finite ? double(d) * double(std::nearbyint(float(a[i]) * inverse)) : NAN;
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), w(args->tensors[kWeight]), packed(args->tensors[kPacked]);
  const View bias(args->tensors[kBias]), out(args->tensors[kOutput]);
  const lz_tensor& input = args->tensors[kInput];
  const int64_t n = out.size(-1), k = input.shape[input.ndim - 1], rows = out.rows();
  const int64_t format = args->scalars[kFormat].value.i, columns = kBlockColumns[size_t(format)];
  const auto weight = [&](int64_t column, int64_t i) {
    if (packed.given()) {
      const auto byte = [&](int64_t at) { return int(uint8_t(packed.GetInt({column / kGroupRows, at}))); };
      return Value<double>(format, PackedAt(format, k, column, i, byte));
    }
    const int64_t begin = i / columns * kBlockBytes[size_t(format)];
    const FileBlock block(format, [&](int64_t at) { return int(uint8_t(w.GetInt({column, begin + at}))); });
    return Value<double>(format, block.At(i % columns));
  };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      double sum = bias.given() ? bias.Get({column}) : 0.0;
      for (int64_t begin = 0; begin < k; begin += kActivationBlock) {
        double a[kActivationBlock];
        for (int64_t i = 0; i < kActivationBlock; ++i) a[i] = x.GetRow(row, begin + i);
        if (args->scalars[kActivations].value.i == kInt8) RoundToInt8(a);
        for (int64_t i = 0; i < kActivationBlock; ++i) sum += a[i] * weight(column, begin + i);
      }
      out.SetRow(row, column, sum);
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.mlp.linear.gguf", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
