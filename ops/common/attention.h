// Checks and defaults that the attention contracts share (canonicalize sides of scale, window, softcap, head counts).
// After them: `scale` is always given; a window or softcap that is off has given == 0 and the values -1 and 0.
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <string_view>

#include "core/contract.h"

namespace lz::ops::attention {

inline constexpr auto kNumericsClasses = std::to_array<std::string_view>({"fp32", "bf16-p"});
// Dtypes that a KV cache may have beside the query's; a kernel constrains "<cache>.dtype" to what it reads (L14).
inline constexpr DTypeMask kCacheDTypes = kFloats | Mask(DType::kF8E4M3, DType::kF8E5M2);
inline constexpr DTypeMask kIndex = Mask(DType::kI32);

inline Status Invalid(std::string_view field, std::string wanted, std::string got, std::string fix) {
  return {StatusCode::kInvalidRequest, {std::string(field), std::move(wanted), std::move(got), std::move(fix)}};
}

// Every KV head serves the same number of query heads: query head h reads KV head h / (h_q / h_kv).
inline Status CheckHeads(std::string_view key_name, int64_t h_q, int64_t h_kv) {
  if (h_kv == 0 ? h_q == 0 : h_q % h_kv == 0) return {};
  return Invalid(key_name, "a head count that divides the query's " + std::to_string(h_q), std::to_string(h_kv),
                 "pass as many query heads as a multiple of the key's heads");
}

// Default: 1 / sqrt(d); 1 for d == 0, where every logit is 0.
inline Status ResolveScale(std::string_view name, int64_t d, lz_scalar& scale) {
  if (!scale.given) {
    scale.value.f = d > 0 ? 1.0 / std::sqrt(double(d)) : 1.0;
    scale.given = 1;
  }
  if (std::isfinite(scale.value.f)) return {};
  return Invalid(name, "a finite number", std::to_string(scale.value.f), "leave it out for 1/sqrt(head_dim)");
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
  return Invalid("softcap", "a finite positive number, or None", std::to_string(softcap.value.f),
                 "leave it out for no cap");
}

}  // namespace lz::ops::attention
