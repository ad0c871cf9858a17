// Reference of mlp.linear.gguf: weights dequantised one by one, FP64 sums; any strides, any float dtype.
// Workspace: the activations of every row and one row of weights, FP64.
#include "ops/mlp/linear/gguf.h"

#include <algorithm>
#include <cmath>

#include "core/kernel.h"
#include "core/view.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear_gguf;

int64_t Columns(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[kInput];
  return input.shape[input.ndim - 1];
}

void RoundToInt8(double* a) {
  float amax = 0;
  bool finite = true;
  for (int64_t i = 0; i < kActivationBlock; ++i) {
    finite = finite && std::isfinite(a[i]);
    amax = std::max(amax, std::fabs(float(a[i])));
  }
  const float d = amax / 127.0f, inverse = amax > 0 ? 127.0f / amax : 0.0f;
  for (int64_t i = 0; i < kActivationBlock; ++i) {
    a[i] = finite ? double(d) * double(std::nearbyint(float(a[i]) * inverse)) : NAN;
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), w(args->tensors[kWeight]), packed(args->tensors[kPacked]);
  const View bias(args->tensors[kBias]), out(args->tensors[kOutput]);
  const int64_t n = out.size(-1), k = Columns(args), rows = out.rows(), format = args->scalars[kFormat].value.i;
  auto* a = static_cast<double*>(args->workspace);
  double* weights = a + rows * k;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < k; ++i) a[row * k + i] = x.GetRow(row, i);
    if (args->scalars[kActivations].value.i != kInt8) continue;
    for (int64_t i = 0; i < k; i += kActivationBlock) RoundToInt8(a + row * k + i);
  }
  const int64_t columns = kBlockColumns[size_t(format)];
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t i = 0; i < k; ++i) {
      const int64_t begin = i / columns * kBlockBytes[size_t(format)], group = column / kGroupRows;
      const FileBlock block(format, [&](int64_t at) { return int(uint8_t(w.GetInt({column, begin + at}))); });
      weights[i] = Value(format, packed.given() ? PackedAt(format, k, column, i,
                                                           [&](int64_t at) {
                                                             return int(uint8_t(packed.GetInt({group, at})));
                                                           })
                                                : block.At(i % columns));
    }
    for (int64_t row = 0; row < rows; ++row) {
      double sum = bias.given() ? bias.Get({column}) : 0.0;
      for (int64_t i = 0; i < k; ++i) sum += a[row * k + i] * weights[i];
      out.SetRow(row, column, sum);
    }
  }
  return 0;
}

uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor& output = args->tensors[kOutput];
  int64_t rows = 1;
  for (int32_t d = 0; d + 1 < output.ndim; ++d) rows *= output.shape[d];
  return uint64_t((rows + 1) * Columns(args)) * sizeof(double);
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "ref.mlp.linear.gguf",
     .operation = "mlp.linear.gguf",
     .dtypes = kFloats,
     .accepts = kAcceptsAll,
     .strides = Strides::kAny,
     .priority = 0,
     .deterministic = true,
     .reference = true,
     .launch = &Launch,
     .workspace = &Workspace},
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
