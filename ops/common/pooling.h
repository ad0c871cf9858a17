// Shared by pooling over one and two axes: parameters, checks, the FP64 reference. Scalars: a window for each axis,
// then the strides, the paddings, mode, count_include_pad.
#pragma once

#include <array>
#include <limits>

#include "ops/common/convolution.h"
#include "ops/common/index.h"

namespace lz::ops::pooling {

enum Tensor { kInput, kOutput };
enum Mode { kMax, kMean };

constexpr Param Window(std::string_view name) { return RequiredInt(name, "positions that one output covers"); }
constexpr Param Stride(std::string_view name) { return RequiredInt(name, "stride between positions of the output"); }
constexpr Param Padding(std::string_view name) {
  return Int(name, 0, "positions added at each end; at most window / 2");
}
inline constexpr Param kModeParam = KeywordOnly(RequiredChoice("mode", "max|mean", "reduction of each window"));
inline constexpr Param kCountParam =
    KeywordOnly(Bool("count_include_pad", true, "mean: padding counts as zeros; false: it does not count"));

#define LZ_POOLING_DEFINITION                                                                                        \
  "output[..., y] = the maximum or the mean of input[..., y * stride - padding + i], 0 <= i < window, for each "     \
  "spatial axis; places outside the input are ignored, but count in the mean's divisor if count_include_pad; a NaN " \
  "is NaN; rounded once"

template <size_t kDims>
Status Check(const BoundArgs& args, const std::array<std::string_view, kDims>& axes) {
  const lz_tensor& x = args.tensors[kInput];
  const lz_scalar *window = args.scalars, *stride = window + kDims, *padding = stride + kDims;
  const lz_scalar *mode = padding + kDims, *count_include_pad = mode + 1;
  if (mode->value.i == kMax && !count_include_pad->value.i) {
    return Invalid("count_include_pad", "true with mode=max, which counts nothing", "false", "leave it out");
  }
  for (size_t i = 0; i < kDims; ++i) {
    const std::string name(axes[i]);
    LZ_RETURN_IF_ERROR(Places(window[i], "window" + name, 1));
    LZ_RETURN_IF_ERROR(Places(stride[i], "stride" + name, 1));
    LZ_RETURN_IF_ERROR(Places(padding[i], "padding" + name, 0));
    const int64_t size = x.shape[x.ndim - int(kDims) + int(i)];
    const int64_t most = size == 0 ? 0 : window[i].value.i / 2;
    if (padding[i].value.i > most) {
      return Invalid("padding" + name, "at most half the window, 0 for an empty axis: " + std::to_string(most),
                     std::to_string(padding[i].value.i), "a window would cover only padding");
    }
    const int64_t padded = size + 2 * padding[i].value.i;
    if (window[i].value.i > padded) {
      return Invalid("window" + name, "at most " + std::to_string(padded) + ", the padded size of input",
                     std::to_string(window[i].value.i), "take a smaller window");
    }
  }
  return {};
}

inline int32_t Reference(const lz_kernel_args* args, int dims) {
  const lz_tensor &x = args->tensors[kInput], &y = args->tensors[kOutput];
  const View input(x), output(y);
  const lz_scalar* s = args->scalars;
  const convolution::Spatial in(x, dims), out(y, dims);
  const convolution::Steps window(s, dims, 1), stride(s + dims, dims, 1), padding(s + 2 * dims, dims, 0);
  const int64_t mode = s[3 * dims].value.i;
  const bool count_padding = s[3 * dims + 1].value.i;
  convolution::Spatial taps = in;
  taps.size = window.of;
  const auto pool_at = [&](int64_t base, const std::array<int64_t, 3>& place) {
    double sum = 0, max = -std::numeric_limits<double>::infinity();
    int64_t count = 0;
    for (int64_t k = 0; k < taps.count(); ++k) {
      std::array<int64_t, 3> at = taps.At(k);
      for (size_t i = 0; i < 3; ++i) at[i] += place[i] * stride.of[i] - padding.of[i];
      if (!in.Holds(at)) continue;
      const double v = input.Load(base + in.Offset(at));
      sum += v;
      ++count;
      if (v > max || std::isnan(v)) max = v;
    }
    return mode == kMax ? max : sum / double(count_padding ? taps.count() : count);
  };
  lz_tensor in_lead = x, out_lead = y;  // the leading axes only
  in_lead.ndim = out_lead.ndim = x.ndim - dims;
  const int64_t rows = View(in_lead).numel();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = ElementOffset(in_lead, row), to = ElementOffset(out_lead, row);
    for (int64_t i = 0; i < out.count(); ++i) output.Store(to + out.Offset(out.At(i)), pool_at(from, out.At(i)));
  }
  return 0;
}

}  // namespace lz::ops::pooling
