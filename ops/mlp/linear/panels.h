// mlp.linear.panels: a matrix product with float weights in panels of 64 columns, and a bias.
#pragma once

#include <array>
#include <string>

#include "core/contract.h"

namespace lz::ops::mlp_linear_panels {

enum Tensor { kInput, kPanels, kBias, kOutput };

inline constexpr DTypeMask kPanelTypes = Mask(DType::kF32, DType::kBF16);
inline constexpr int64_t kPanel = 64;  // columns; the 64 in the shapes below
inline constexpr int64_t kDepth = 32;  // k is a multiple of it

// The offset of value i of k of column `column` in its panel, in elements from the start of the panel.
constexpr int64_t PlaceInPanel(bool pairs, int64_t i, int64_t column) {
  return pairs ? i / 2 * 2 * kPanel + column * 2 + i % 2 : i * kPanel + column;
}

inline constexpr auto kVariants = std::to_array<Variant>({{"mlp.linear.panels"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., k", kPanelTypes, "rows to transform; k is a multiple of 32"),
    SameDType(TensorParam("panels", "p, k, 64", kPanelTypes, "the weights as linear_panels_prepack returns them"),
              "input"),
    SameDType(OptionalTensor("bias", "p * 64", kPanelTypes, "added to every row; None means 0"), "input"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., p * 64", .dtype = "input", .doc = "the rows of input @ weight^T + bias"},
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({
    {"rows", "..."},  // the product of the leading axes
});

inline Status CheckMultiple(int64_t size, int64_t of, const char* field, const char* what) {
  if (size % of == 0) return {};
  return Status(StatusCode::kInvalidRequest, {.field = field,
                                              .wanted = std::string(what) + " a multiple of " + std::to_string(of),
                                              .got = std::to_string(size),
                                              .fix = "use linear with the unpacked weight"});
}
inline Status Canonicalize(BoundArgs& args) {
  return CheckMultiple(args.tensors[kPanels].shape[1], kDepth, "panels", "k");
}

inline constexpr Contract kContract = {
    .name = "linear_panels",
    .summary = "Matrix product with float weights that were put into panels of 64 columns once, plus a bias.",
    .definition =
        "output[..., j] = sum_i input[..., i] * weight[j, i] + bias[j], rounded once; weight is the argument of "
        "linear_panels_prepack; in bf16, factors and products below 2^-126 may count as 0",
    .source = "definition",
    .replaces = "unpacking, then torch.nn.functional.linear(input, weight, bias)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .tolerance = {.compare = Compare::kRowMax},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::mlp_linear_panels
