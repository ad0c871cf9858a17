// elementwise.binary: arithmetic of two tensors, the second broadcast to the first and scaled (residual additions).
#pragma once

#include <array>

#include "ops/common/checks.h"

namespace lz::ops::elementwise_binary {

enum Tensor { kInput, kOther, kOutput };
enum Scalar { kFunction, kScale };
enum Function { kAdd, kSub, kMul, kDiv, kMaximum, kMinimum };

inline Status Canonicalize(BoundArgs& args) {
  const lz_tensor &x = args.tensors[kInput], &y = args.tensors[kOther];
  LZ_RETURN_IF_ERROR(Finite(args.scalars[kScale], "scale"));
  bool fits = y.ndim <= x.ndim;
  for (int i = 1; fits && i <= y.ndim; ++i) {
    fits = y.shape[y.ndim - i] == 1 || y.shape[y.ndim - i] == x.shape[x.ndim - i];
  }
  if (fits) return {};
  return Invalid("other", "a shape that broadcasts to the input's, " + ShapeText(x), ShapeText(y),
                 "swap the arguments, or expand input first: the result has the input's shape");
}

inline constexpr auto kVariants = std::to_array<Variant>({{"elementwise.binary"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "...", kFloats, "determines shape and dtype of the result"),
    TensorParam("other", "*", kFloats, "broadcast to input: axes of size 1 repeat, first axes may be missing"),
    Choice("function", "add|sub|mul|div|maximum|minimum", kAdd, "the arithmetic operation"),
    KeywordOnly(Float("scale", 1.0, "factor of other, applied first")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "...", .dtype = "input", .doc = "shape and dtype of input"},
});

inline constexpr Contract kContract = {
    .name = "elementwise",
    .summary = "Arithmetic of two tensors, element by element: sum, difference, product, quotient, larger, smaller.",
    .definition =
        "y = scale * other; output = input + y, input - y, input * y, input / y, max(input, y) or min(input, "
        "y), rounded once to the dtype of input; max and min of a NaN are NaN; output may alias input",
    .source = "definition",
    .replaces = "torch.add(input, other, alpha=scale), sub, mul, div, maximum, minimum",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::elementwise_binary
