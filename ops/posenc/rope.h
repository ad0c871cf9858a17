// posenc.rope: rotary position embedding from cosine and sine tables.
#pragma once

#include <array>
#include <string>

#include "core/contract.h"

namespace lz::ops::posenc_rope {

enum Tensor { kInput, kCos, kSin, kPositionIds, kOutput };
enum Scalar { kInterleaved, kInverse, kRotaryDim };
enum Axis { kB, kS, kH, kD };

// The result of a launch with a position id outside the tables; nothing is written then.
inline constexpr int32_t kPositionOutOfRange = 1;

inline Status Invalid(std::string_view field, std::string wanted, std::string got, std::string fix) {
  return {StatusCode::kInvalidRequest, {std::string(field), std::move(wanted), std::move(got), std::move(fix)}};
}
inline std::string ShapeText(const lz_tensor& t) {
  std::string text = "(";
  for (int i = 0; i < t.ndim; ++i) text += (i ? ", " : "") + std::to_string(t.shape[i]);
  return text + ")";
}

// The number of rotated columns r, from the table's width w and the head dimension d:
//   rotary_dim given      r = rotary_dim, w must be r or r / 2
//   w == d or w == d / 2  r = d
//   d / 2 < w < d         r = w: half a table of 2 w columns would not fit
//   w < d / 2             r could be w or 2 w: refused
inline Status ResolveRotaryDim(int64_t d, int64_t w, lz_scalar& rotary_dim) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  if (!rotary_dim.given) {
    if (w > d)
      return Invalid("cos", "a last axis of at most the head dimension " + text(d), text(w), "slice the tables");
    if (w != d && 2 * w < d) {
      return Invalid("rotary_dim",
                     "to be given: tables of width " + text(w) + " rotate " + text(w) + " or " + text(2 * w) + " of " +
                         text(d) + " columns",
                     "None", "pass rotary_dim=" + text(w) + " or rotary_dim=" + text(2 * w));
    }
    rotary_dim = {.value = {.i = w == d || 2 * w == d ? d : w}, .given = 1};
  }
  const int64_t r = rotary_dim.value.i;
  if (r < 0 || r > d || r % 2 != 0) {
    return Invalid("rotary_dim", "an even number of columns from 0 to " + text(d), text(r), "columns rotate in pairs");
  }
  if (w == r || 2 * w == r) return {};
  return Invalid("cos", "a last axis of " + text(r) + " or " + text(r / 2), text(w),
                 "pass one value for each rotated column, or one for each pair");
}

// Tables are (s, w) or (b or 1, s, w); with position_ids (n, w), the ids (s) or (b or 1, s).
inline Status CheckTables(const BoundArgs& args) {
  const lz_tensor &cos = args.tensors[kCos], &sin = args.tensors[kSin], &ids = args.tensors[kPositionIds];
  const int64_t b = args.axes[kB], s = args.axes[kS];
  const auto rows_fit = [&](const lz_tensor& t, int rank) {  // the leading axes of a table, or the ids
    if (rank == 1) return t.shape[0] == s;
    return rank == 2 && (t.shape[0] == b || t.shape[0] == 1) && t.shape[1] == s;
  };
  const auto rows_text = [&](std::string_view width) {  // "(3, width) or (2, 3, width)"
    const std::string sequence = std::to_string(s) + std::string(width) + ")";
    return "shape (" + sequence + " or (" + std::to_string(b) + ", " + sequence;
  };
  if (ids.ndim >= 0) {
    if (cos.ndim != 2) {
      return Invalid("cos", "shape (positions, width) with position_ids", ShapeText(cos), "pass the whole table");
    }
    if (!rows_fit(ids, ids.ndim)) {
      return Invalid("position_ids", rows_text(""), ShapeText(ids), "pass the position of every row of input");
    }
  } else if (cos.ndim < 2 || !rows_fit(cos, cos.ndim - 1)) {
    return Invalid("cos", rows_text(", width"), ShapeText(cos),
                   "index the tables by position first, or pass position_ids");
  }
  bool same = sin.ndim == cos.ndim;
  for (int i = 0; same && i < cos.ndim; ++i) same = sin.shape[i] == cos.shape[i];
  if (same) return {};
  return Invalid("sin", "the shape of cos, " + ShapeText(cos), ShapeText(sin), "make both tables alike");
}

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(CheckTables(args));
  const lz_tensor& cos = args.tensors[kCos];
  return ResolveRotaryDim(args.axes[kD], cos.shape[cos.ndim - 1], args.scalars[kRotaryDim]);
}

inline constexpr auto kVariants = std::to_array<Variant>({{"posenc.rope"}});
inline constexpr auto kParams = std::to_array<Param>({
    AnyBatch(WithLayout(TensorParam("input", "b, s, h, d", kFloats, "heads to rotate: queries or keys")), 4),
    AnyBatch(TensorParam("cos", "*", kFloats,
                         "cosines: (s, w) or (b, s, w); w: a value for each rotated column or each pair"),
             3),
    AnyBatch(SameDType(TensorParam("sin", "*", kFloats, "sines: like cos"), "cos"), 3),
    Bool("interleaved", false, "pairs are columns 2 i, 2 i + 1 instead of i, i + r / 2"),
    KeywordOnly(
        AnyBatch(OptionalTensor("position_ids", "*", kIndices, "(s) or (b, s): rows of tables of shape (n, w)"), 2)),
    KeywordOnly(Bool("inverse", false, "rotate by the negative angle")),
    KeywordOnly(OptionalInt("rotary_dim", "rotated columns r, the first ones; None: from the tables' width")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "b, s, h, d",
     .dtype = "input",
     .doc = "same shape as input",
     .layout = true,
     .may_alias = "input"},
});

inline constexpr Contract kContract = {
    .name = "rope",
    .summary = "Rotary position embedding of the first columns of each head, from cosine and sine tables.",
    .definition =
        "r = rotary_dim, m = r / 2; pairs (j, k) of columns: (i, i + m), interleaved (2 i, 2 i + 1), i < m. output[j] "
        "= input[j] cos_j - input[k] sin_j; output[k] = input[k] cos_k + input[j] sin_k; columns from r on are copied. "
        "Tables of width r hold a value for each column, of width r / 2 one for each pair (cos_j = cos_k = cos[i]). "
        "inverse negates sin. rotary_dim not given: w = d or w = d / 2 means r = d, d / 2 < w < d means r = w, less is "
        "refused as ambiguous. FP32 or wider, rounded once; output may alias input",
    .source = "Su et al. 2021, arXiv:2104.09864, eq. 34",
    .replaces = "input * cos + rotate_half(input) * sin",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .layouts = "BSHD: b s h d | BHSD: b h s d",
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::posenc_rope
