// Reference of convolution.causal_conv1d: FP64, any strides, any float dtype. Output must not alias input.
#include "ops/convolution/causal_conv1d.h"

#include <cmath>
#include <vector>

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::convolution_causal_conv1d;

void Run(const lz_kernel_args* args, int64_t b, int64_t c) {
  const View input(args->tensors[kInput]), weight(args->tensors[kWeight]), state(args->tensors[kState]);
  const View bias(args->tensors[kBias]), output(args->tensors[kOutput]);
  const int64_t s = input.size(1), k = weight.size(1), n = state.size(2);
  std::vector<double> x;
  for (int64_t i = 0; i < n; ++i) x.push_back(state.Get({b, c, i}));
  for (int64_t t = 0; t < s; ++t) x.push_back(input.Get({b, t, c}));
  for (int64_t t = 0; t < s; ++t) {
    double sum = bias.given() ? bias.Get({c}) : 0.0;
    for (int64_t j = 0; j < k; ++j) sum += weight.Get({c, j}) * x[size_t(n + t - k + 1 + j)];
    if (args->scalars[kActivation].value.i == kSilu) sum /= 1 + std::exp(-sum);
    output.Set({b, t, c}, sum);
  }
  for (int64_t i = 0; i < n; ++i) state.Set({b, c, i}, x[size_t(s + i)]);
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor& state = args->tensors[kState];
  for (int64_t b = 0; b < state.shape[0]; ++b) {
    for (int64_t c = 0; c < state.shape[1]; ++c) Run(args, b, c);
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.convolution.causal_conv1d", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
