// Shared by the convolutions over one, two and three axes: parameters, checks, the FP64 reference. Tensors: input,
// weight, bias, output. Scalars: a stride for each axis, then the paddings, the dilations, groups.
#pragma once

#include <array>

#include "core/view.h"
#include "ops/common/checks.h"

namespace lz::ops::convolution {

enum Tensor { kInput, kWeight, kBias, kOutput };

inline constexpr Param kBiasParam =
    SameDType(OptionalTensor("bias", "c_out", kFloats, "added to every position of a channel; None means 0"), "input");
inline constexpr Param kGroupsParam = Int("groups", 1, "number of groups of channels that do not mix");
constexpr Param Stride(std::string_view name) { return Int(name, 1, "stride between positions of the output"); }
constexpr Param Padding(std::string_view name) {
  return Int(name, 0,
             "zeros before the first position and after the "
             "last");
}
constexpr Param Dilation(std::string_view name) { return Int(name, 1, "distance between two weights"); }

#define LZ_CONVOLUTION_DEFINITION                                                                                      \
  "output[n, o, y] = bias[o] + sum over c, k of weight[o, c, k] * input[n, first(o) + c, y * stride - padding + k * "  \
  "dilation] for each spatial axis, where places outside the input add nothing (those of a weight that is not finite " \
  "may); first(o) is the first channel of "                                                                            \
  "o's group: floor(o / (c_out / groups)) * (c_in / groups); rounded once"

// `axes`: names of the spatial axes, for messages.
template <size_t kDims>
Status Check(const BoundArgs& args, const std::array<std::string_view, kDims>& axes) {
  const lz_tensor &x = args.tensors[kInput], &w = args.tensors[kWeight];
  const lz_scalar *stride = args.scalars, *padding = stride + kDims, *dilation = padding + kDims;
  const int64_t groups = dilation[kDims].value.i;
  LZ_RETURN_IF_ERROR(AtLeast(dilation[kDims], "groups", 1));
  for (int i = 0; i < w.ndim; ++i) {
    if (w.shape[i] < 1) return Invalid("weight", "at least 1 along each axis", ShapeText(w), "pass weights");
  }
  if (x.shape[1] % groups != 0) {
    return Invalid("groups", "a divisor of the " + std::to_string(x.shape[1]) + " input channels",
                   std::to_string(groups), "all groups take equally many channels");
  }
  if (w.shape[0] % groups != 0) {
    return Invalid("groups", "a divisor of the " + std::to_string(w.shape[0]) + " output channels",
                   std::to_string(groups), "all groups have equally many channels");
  }
  for (size_t i = 0; i < kDims; ++i) {
    const std::string name(axes[i]);
    LZ_RETURN_IF_ERROR(Places(stride[i], "stride" + name, 1));
    LZ_RETURN_IF_ERROR(Places(padding[i], "padding" + name, 0));
    LZ_RETURN_IF_ERROR(Places(dilation[i], "dilation" + name, 1));
    const int64_t steps = w.shape[2 + i] - 1, padded = x.shape[2 + i] + 2 * padding[i].value.i;
    if (padded < 1 || steps > (padded - 1) / dilation[i].value.i) {
      const std::string window = std::to_string(dilation[i].value.i) + " * " + std::to_string(steps) + " + 1";
      return Invalid("input", "at least " + window + " places with their padding", std::to_string(padded),
                     "pad more, or take a smaller window");
    }
  }
  return {};
}

// The last `dims` axes of a tensor as three, with missing ones of size 1 in front.
struct Spatial {
  Spatial(const lz_tensor& t, int dims) {
    for (int i = 0; i < dims; ++i) {
      size[3 - dims + i] = t.shape[t.ndim - dims + i];
      stride[3 - dims + i] = t.strides[t.ndim - dims + i];
    }
  }
  int64_t count() const { return size[0] * size[1] * size[2]; }
  std::array<int64_t, 3> At(int64_t flat) const {
    return {flat / (size[1] * size[2]), flat / size[2] % size[1], flat % size[2]};
  }
  int64_t Offset(const std::array<int64_t, 3>& at) const {
    return at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2];
  }
  bool Holds(const std::array<int64_t, 3>& at) const {
    return at[0] >= 0 && at[0] < size[0] && at[1] >= 0 && at[1] < size[1] && at[2] >= 0 && at[2] < size[2];
  }
  std::array<int64_t, 3> size = {1, 1, 1}, stride = {0, 0, 0};
};

// Strides, paddings and dilations of a window over three axes, from the scalars of `dims`.
struct Steps {
  Steps(const lz_scalar* values, int dims, int64_t missing) : of{missing, missing, missing} {
    for (int i = 0; i < dims; ++i) of[size_t(3 - dims) + size_t(i)] = values[i].value.i;
  }
  std::array<int64_t, 3> of;
};

inline int32_t Reference(const lz_kernel_args* args, int dims) {
  const lz_tensor &x = args->tensors[kInput], &w = args->tensors[kWeight], &y = args->tensors[kOutput];
  const View input(x), weight(w), bias(args->tensors[kBias]), output(y);
  const Spatial in(x, dims), window(w, dims), out(y, dims);
  const Steps stride(args->scalars, dims, 1), padding(args->scalars + dims, dims, 0);
  const Steps dilation(args->scalars + 2 * dims, dims, 1);
  const int64_t groups = args->scalars[3 * dims].value.i, c_out = w.shape[0], c_group = w.shape[1];
  const auto sum_at = [&](int64_t n, int64_t o, const std::array<int64_t, 3>& place) {
    double sum = bias.given() ? bias.Get({o}) : 0.0;
    const int64_t first = o / (c_out / groups) * c_group;
    for (int64_t k = 0; k < window.count(); ++k) {
      const std::array<int64_t, 3> tap = window.At(k);
      std::array<int64_t, 3> at;
      for (size_t i = 0; i < 3; ++i) at[i] = place[i] * stride.of[i] - padding.of[i] + tap[i] * dilation.of[i];
      if (!in.Holds(at)) continue;
      for (int64_t c = 0; c < c_group; ++c) {
        sum += weight.Load(o * w.strides[0] + c * w.strides[1] + window.Offset(tap)) *
               input.Load(n * x.strides[0] + (first + c) * x.strides[1] + in.Offset(at));
      }
    }
    return sum;
  };
  for (int64_t n = 0; n < x.shape[0]; ++n) {
    for (int64_t o = 0; o < c_out; ++o) {
      for (int64_t i = 0; i < out.count(); ++i) {
        const std::array<int64_t, 3> place = out.At(i);
        output.Store(n * y.strides[0] + o * y.strides[1] + out.Offset(place), sum_at(n, o, place));
      }
    }
  }
  return 0;
}

}  // namespace lz::ops::convolution
