// mlp.linear.panels.prepack: float weights in panels of 64 columns, which matrix products read without packing.
#pragma once

#include <array>

#include "ops/mlp/linear/panels.h"

namespace lz::ops::mlp_linear_panels_prepack {
using mlp_linear_panels::kDepth;
using mlp_linear_panels::kPanel;
using mlp_linear_panels::kPanelTypes;
using mlp_linear_panels::PlaceInPanel;

enum Tensor { kWeight, kPanels };

inline constexpr auto kVariants = std::to_array<Variant>({{"mlp.linear.panels.prepack"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("weight", "n, k", kPanelTypes,
                "one row of k weights per output column; n a multiple of 64, k a multiple of 32"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "panels",
     .shape = "n / 64, k, 64",
     .dtype = "weight",
     .doc = "for the argument `panels` of linear_panels"},
});

inline Status Canonicalize(BoundArgs& args) {
  const int64_t* shape = args.tensors[kWeight].shape;
  LZ_RETURN_IF_ERROR(mlp_linear_panels::CheckMultiple(shape[0], kPanel, "weight", "n"));
  return mlp_linear_panels::CheckMultiple(shape[1], kDepth, "weight", "k");
}

inline constexpr Contract kContract = {
    .name = "linear_panels_prepack",
    .summary = "Puts float weights into the order that the fastest matrix products read, for linear_panels.",
    .definition =
        "Panel p holds the weights of the output columns from 64 p on, 64 for each value of k: float32 as [k, 64], "
        "bfloat16 as [k / 2, 64, 2], two adjacent values of k",
    .source = "own; oneDNN's formats BA16a64b and BA16a64b2a, libxsmm's VNNI layout",
    .replaces = "a view and a transposition",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::mlp_linear_panels_prepack
