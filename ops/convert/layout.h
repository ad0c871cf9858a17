// convert.layout: tensors of attention between BSHD, BHSD and the forms without a batch axis, NHD and HND.
#pragma once

#include <array>
#include <string>

#include "core/contract.h"

namespace lz::ops::convert_layout {

enum Tensor { kInput, kOutput };
enum Scalar { kSource, kTarget, kBatch };
inline constexpr DTypeMask kDTypesMoved = (DTypeMask{1} << int(DType::kCount)) - 2;  // all dtypes
enum Layout { kBSHD, kBHSD, kNHD, kHND };
constexpr bool IsBatched(int64_t layout) { return layout <= kBHSD; }
constexpr bool HeadsFirst(int64_t layout) { return layout % 2 == 1; }

// Sizes from the input [..., x, y, d], where x and y are sequence and heads, in either order.
#define LZ_SEQUENCE "(x * source[1, 0, 1, 0] + y * source[0, 1, 0, 1])"
#define LZ_HEADS "x * source[0, 1, 0, 1] + y * source[1, 0, 1, 0]"

inline constexpr auto kVariants = std::to_array<Variant>({{"convert.layout"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., x, y, d", kDTypesMoved, "queries, keys or values"),
    RequiredChoice("source", "BSHD|BHSD|NHD|HND", "layout of the input"),
    RequiredChoice("target", "BSHD|BHSD|NHD|HND", "layout of the output"),
    KeywordOnly(Int("batch", 1, "from NHD or HND to a layout with a batch axis: its size, which divides the tokens")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "target{... * batch, " LZ_SEQUENCE " / batch, " LZ_HEADS ", d | "
              "... * batch, " LZ_HEADS ", " LZ_SEQUENCE " / batch, d | "
              "... * " LZ_SEQUENCE ", " LZ_HEADS ", d | " LZ_HEADS ", ... * " LZ_SEQUENCE ", d}",
     .dtype = "input",
     .doc = "the same values"},
});
#undef LZ_SEQUENCE
#undef LZ_HEADS

inline Status Canonicalize(BoundArgs& args) {
  const lz_tensor& input = args.tensors[kInput];
  const int64_t source = args.scalars[kSource].value.i, target = args.scalars[kTarget].value.i;
  const int64_t batch = args.scalars[kBatch].value.i;
  const auto bad = [](std::string field, std::string wanted, std::string got) {
    return Status(StatusCode::kInvalidRequest,
                  {.field = std::move(field), .wanted = std::move(wanted), .got = std::move(got)});
  };
  const int32_t rank = IsBatched(source) ? 4 : 3;
  if (input.ndim != rank) {
    return bad("input", std::to_string(rank) + " axes for " + std::string(ChoiceName("BSHD|BHSD|NHD|HND", source)),
               std::to_string(input.ndim));
  }
  if (IsBatched(source) || !IsBatched(target)) {
    return batch == 1 ? Status()
                      : bad("batch", "1: only a batch axis that is created has a size", std::to_string(batch));
  }
  const int64_t tokens = input.shape[HeadsFirst(source) ? 1 : 0];
  if (batch >= 1 && tokens % batch == 0) return {};
  return bad("batch", "a divisor of the tokens, " + std::to_string(tokens), std::to_string(batch));
}

inline constexpr Contract kContract = {
    .name = "convert_layout",
    .summary = "Copies a tensor of attention into another layout: BSHD, BHSD, NHD or HND.",
    .definition =
        "B batch, S sequence, H heads, D head dimension, N = B * S tokens, sequence by sequence; the output "
        "is dense in the target layout",
    .source = "definition",
    .replaces = "input.transpose(1, 2).contiguous(), .reshape(...)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = true,
};

}  // namespace lz::ops::convert_layout
