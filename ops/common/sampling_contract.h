// Parameters, checks and wording that the sampling operations share.
#pragma once

#include <cmath>
#include <string>

#include "core/contract.h"
#include "core/number_text.h"

namespace lz::sampling {

inline constexpr Param kLogits = TensorParam("logits", "..., vocab", kFloats, "unnormalized log-probabilities");
inline constexpr Param kTemperatureParam =
    KeywordOnly(Float("temperature", 1.0, "logits are divided by it first; finite and above 0"));
inline constexpr Param kSeedParam = KeywordOnly(OptionalInt(
    "seed", "key of the random numbers; Python without `seed` and `uniform` draws `uniform` by torch.rand"));
inline constexpr Param kOffsetParam =
    KeywordOnly(Int("offset", 0, "counter of the random numbers: a new one for every step with the same seed"));
inline constexpr Param kUniformParam =
    KeywordOnly(OptionalTensor("uniform", "...", kFloat32And64, "u of each row, in [0, 1), instead of a seed"));
inline constexpr Param kRowKParam =
    KeywordOnly(OptionalTensor("row_k", "...", kIndices, "k of each row, instead of k"));
inline constexpr Param kRowPParam = KeywordOnly(OptionalTensor("row_p", "...", kFloats, "p of each row, instead of p"));
inline constexpr Param kRowMinPParam =
    KeywordOnly(OptionalTensor("row_min_p", "...", kFloats, "min_p of each row, instead of min_p"));
inline constexpr Param kRowTemperatureParam =
    KeywordOnly(OptionalTensor("row_temperature", "...", kFloats, "temperature of each row, instead of temperature"));
inline constexpr Output kToken = {.name = "token",
                                  .shape = "...",
                                  .dtype = "int64",
                                  .doc = "sampled index, or -1 for a row with a NaN or whose logits are all -inf"};

// The part of every definition that describes how one token is drawn from a kept set.
#define LZ_SAMPLING_DRAW                                                                                              \
  "With m = max(logits), w_i = exp((logits_i - m) / temperature) (1 where logits_i = m) and u = PhiloxUniform(seed, " \
  "offset, row, 0) (ops/common/philox.h) or the row's `uniform`, the token is the first index, in vocabulary order, " \
  "at which the running sum of w over the kept set exceeds u times the kept set's total. A row with a NaN or whose "  \
  "logits are all -inf has no distribution: its token is -1, in strict mode an error. "

// Results are exact tokens of FP64 arithmetic; a kernel may differ where its arithmetic moves a boundary by this much.
inline constexpr Tolerance kTokenTolerance = {
    .compare = Compare::kToken, .f32 = 1e-5, .f16 = 1e-5, .bf16 = 1e-5, .f64 = 1e-5};

inline bool IsTemperature(double t) { return std::isfinite(t) && t > 0; }
inline bool IsProbability(double p) { return p >= 0 && p <= 1; }
inline bool IsUniform(double u) { return u >= 0 && u < 1; }

// `rows`: the tensor that may replace the scalar.
inline Status CheckOneOf(const lz_scalar& s, const lz_tensor& rows, std::string_view name) {
  if (bool(s.given) != (rows.ndim >= 0)) return {};
  const std::string row_name = "row_" + std::string(name);
  return Status(StatusCode::kInvalidRequest, {.field = std::string(name),
                                              .wanted = "a number for all rows, or " + row_name + ": one of them",
                                              .got = s.given ? "both" : "neither",
                                              .fix = s.given ? "leave one of them out" : "pass one of them"});
}
inline Status CheckTemperature(const lz_scalar& s, const lz_tensor& rows) {
  if (rows.ndim >= 0 && s.value.f != 1.0) {
    return Status(StatusCode::kInvalidRequest, {.field = "temperature",
                                                .wanted = "1 with row_temperature",
                                                .got = NumberText(s.value.f),
                                                .fix = "leave one of them out"});
  }
  if (IsTemperature(s.value.f)) return {};
  return Status(StatusCode::kInvalidRequest, {.field = "temperature",
                                              .wanted = "a finite number above 0",
                                              .got = NumberText(s.value.f),
                                              .fix = "for greedy decoding use sample_topk with k=1"});
}
inline Status CheckTopK(const lz_scalar& s, const lz_tensor& rows) {
  LZ_RETURN_IF_ERROR(CheckOneOf(s, rows, "k"));
  if (!s.given || s.value.i >= 1) return {};
  return Status(StatusCode::kInvalidRequest, {.field = "k",
                                              .wanted = "at least 1",
                                              .got = std::to_string(s.value.i),
                                              .fix = "a k of the vocabulary's size or more keeps every token"});
}
inline Status CheckProbability(const lz_scalar& s, const lz_tensor& rows, std::string_view name, std::string_view fix) {
  LZ_RETURN_IF_ERROR(CheckOneOf(s, rows, name));
  if (!s.given || IsProbability(s.value.f)) return {};
  return Status(StatusCode::kInvalidRequest, {.field = std::string(name),
                                              .wanted = "a number in [0, 1]",
                                              .got = NumberText(s.value.f),
                                              .fix = std::string(fix)});
}
// A draw has one source: a seed with its offset, or `uniform`.
inline Status CheckDraw(const lz_scalar& seed, const lz_scalar& offset, const lz_tensor& uniform) {
  const bool given = uniform.ndim >= 0;
  if (bool(seed.given) != given && !(given && offset.value.i != 0)) return {};
  return Status(StatusCode::kInvalidRequest, {.field = "seed",
                                              .wanted = "a seed with its offset, or uniform: one of them",
                                              .got = given ? "both" : "neither",
                                              .fix = given ? "leave one of them out" : "pass one of them"});
}
inline Status CheckTopP(const lz_scalar& s, const lz_tensor& rows) {
  return CheckProbability(s, rows, "p", "p=1 keeps every token, p=0 the best");
}
inline Status CheckMinP(const lz_scalar& s, const lz_tensor& rows) {
  return CheckProbability(s, rows, "min_p", "min_p=0 keeps every token");
}

}  // namespace lz::sampling
