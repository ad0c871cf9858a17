// Parameters, outputs, checks and defaults that the attention contracts share. After the checks `scale` is always
// given; a disabled window or softcap has given == 0 and the value -1 or 0.
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <string_view>

#include "core/contract.h"
#include "core/number_text.h"
#include "ops/common/kv_rows.h"

namespace lz::ops::attention {

inline constexpr auto kNumericsClasses = std::to_array<std::string_view>({"fp32", "bf16-p"});
// Dtypes that a KV cache may have, independent of the query's; a kernel constrains "<cache>.dtype" to those it reads
// (L14). In a contract without scales, the scale of the keys is a factor of the logits' `scale`, that of the values a
// factor of the output. int8 requires scales (CheckScales).
inline constexpr DTypeMask kCacheDTypes = kFloats | Mask(DType::kF8E4M3, DType::kF8E5M2);
inline constexpr DTypeMask kScaledCacheDTypes = kv::kCacheDTypes;

// ---- parameters and outputs

constexpr Param Scale(std::string_view name, std::string_view doc = "factor of the logits; None: 1/sqrt(d_qk)") {
  return OptionalFloat(name, doc);
}
constexpr Param Window() {
  return KeywordOnly(OptionalInt("window", "visible keys per row, its own position included; None or -1: all"));
}
constexpr Param WindowLeft() {
  return KeywordOnly(Int("window_left", -1, "visible keys before the query's position; -1: all"));
}
constexpr Param SoftcapParam() {
  return KeywordOnly(OptionalFloat("softcap", "bound c of the logits, c tanh(logit / c); None or 0: none"));
}
constexpr Param Sinks(std::string_view shape = "h_q") {
  return KeywordOnly(OptionalTensor("sinks", shape, kFloats, "logit per head of a key without a value; not scaled"));
}
constexpr Param AlibiSlopes() {
  return KeywordOnly(OptionalTensor("alibi_slopes", "h_q", kFloats, "slope per head of the distance bias"));
}
constexpr Param AttnMask() {
  return KeywordOnly(Broadcast(OptionalTensor("attn_mask", "b, h_q, s_q, s_kv", kFloats | Mask(DType::kBool),
                                              "bool: True keeps the key; float: added to the logits, -inf masks it")));
}
constexpr Param ReturnLse() {
  return KeywordOnly(Bool("return_lse", false, "also return the log of the sum of exponentials"));
}
// A paged cache and its CSR page lists, one per sequence of the axis b.
constexpr Param KCache(DTypeMask dtypes = kScaledCacheDTypes) {
  return TensorParam("paged_k_cache", "pages, page_size, h_kv, d_qk", dtypes, "key pages");
}
constexpr Param VCache(DTypeMask dtypes = kScaledCacheDTypes) {
  return SameDType(TensorParam("paged_v_cache", "pages, page_size, h_kv, d_v", dtypes, "value pages"), "paged_k_cache");
}
constexpr Param KVIndptr() {
  return IndexTensor("kv_indptr", "b + 1", "first entry of each sequence in kv_indices, then the end");
}
constexpr Param KVIndices() { return IndexTensor("kv_indices", "num_indices", "page numbers"); }
constexpr Param KVLastPageLen() {
  return IndexTensor("kv_last_page_len", "b", "entries in the last page of each sequence");
}
// The scales that kv.append_paged stored the rows with.
constexpr Param KScale() {
  return KeywordOnly(
      Broadcast(OptionalTensor("k_scale", "h_kv", Mask(DType::kF32), "scale of the stored keys; None: 1")));
}
constexpr Param VScale() {
  return KeywordOnly(
      Broadcast(OptionalTensor("v_scale", "h_kv", Mask(DType::kF32), "scale of the stored values; None: 1")));
}
constexpr Output Lse(std::string_view shape, std::string_view name = "lse") {
  return {.name = name,
          .shape = shape,
          .dtype = "float32",
          .doc = "natural log of the sum of exp(logit) over visible keys, without the sink; -inf if there is none",
          .only_if = "return_lse"};
}

// ---- checks

inline Status Invalid(std::string_view field, std::string wanted, std::string got, std::string fix) {
  return {StatusCode::kInvalidRequest, {std::string(field), std::move(wanted), std::move(got), std::move(fix)}};
}

// Every KV head serves the same number of query heads: query head h reads KV head h / (h_q / h_kv).
inline Status CheckHeads(std::string_view key_name, int64_t h_q, int64_t h_kv) {
  if (h_kv == 0 ? h_q == 0 : h_q % h_kv == 0) return {};
  return Invalid(key_name, "a head count that divides the query's " + std::to_string(h_q), std::to_string(h_kv),
                 "pass a number of query heads that is a multiple of the key's heads");
}

inline Status CheckScales(const lz_tensor& cache, const lz_tensor& k_scale, const lz_tensor& v_scale) {
  LZ_RETURN_IF_ERROR(kv::CheckScale("k_scale", cache, k_scale));
  return kv::CheckScale("v_scale", cache, v_scale);
}

// None means causal if there is no mask; both together are refused (L13).
inline Status ResolveCausal(const lz_tensor& attn_mask, lz_scalar& causal) {
  const bool masked = attn_mask.ndim >= 0;
  if (!causal.given) causal = {.value = {.i = !masked}, .given = 1};
  if (!masked || !causal.value.i) return {};
  return Invalid("attn_mask", "a mask or causal=True", "both", "fold the causal triangle into the mask");
}

inline Status CheckDropout(const lz_scalar& dropout_p) {
  const double p = dropout_p.value.f;
  if (p >= 0 && p < 1) return {};
  return Invalid("dropout_p", "a probability in [0, 1)", std::to_string(p), "pass 0 for inference");
}

// Default: 1 / sqrt(d); 1 for d == 0, where every logit is 0.
inline Status ResolveScale(std::string_view name, int64_t d, lz_scalar& scale) {
  if (!scale.given) {
    scale.value.f = d > 0 ? 1.0 / std::sqrt(double(d)) : 1.0;
    scale.given = 1;
  }
  if (std::isfinite(scale.value.f)) return {};
  return Invalid(name, "a finite number", NumberText(scale.value.f), "leave it out for 1/sqrt(head_dim)");
}

// Keys kept per row, the row's own position included; -1 = all.
inline Status ResolveWindow(lz_scalar& window) {
  if (!window.given || window.value.i == -1) {
    window = {.value = {.i = -1}, .given = 0};
    return {};
  }
  if (window.value.i > 0) return {};
  return Invalid("window", "a positive number of keys, or None", std::to_string(window.value.i),
                 "count the row's own position: window=1 sees only it");
}

// Keys kept before the row's own position; -1 = all.
inline Status CheckWindowLeft(const lz_scalar& window_left) {
  if (window_left.value.i >= -1) return {};
  return Invalid("window_left", "-1 (no window) or a number of keys >= 0", std::to_string(window_left.value.i),
                 "pass -1 for no window");
}

inline Status ResolveSoftcap(lz_scalar& softcap) {
  if (!softcap.given || softcap.value.f == 0) {
    softcap = {.value = {.f = 0.0}, .given = 0};
    return {};
  }
  if (softcap.value.f > 0 && std::isfinite(softcap.value.f)) return {};
  return Invalid("softcap", "a finite positive number, or None", NumberText(softcap.value.f),
                 "leave it out for no cap");
}

}  // namespace lz::ops::attention
