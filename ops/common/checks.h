// Checks that several contracts share: refusals in one line, bounds of scalars.
//   LZ_RETURN_IF_ERROR(AtLeast(args.scalars[kStride], "stride", 1));
#pragma once

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "core/contract.h"
#include "core/number_text.h"

namespace lz::ops {

inline Status Invalid(std::string_view field, std::string wanted, std::string got, std::string fix) {
  return {StatusCode::kInvalidRequest, {std::string(field), std::move(wanted), std::move(got), std::move(fix)}};
}

inline Status AtLeast(const lz_scalar& s, std::string_view name, int64_t least) {
  if (s.value.i >= least) return {};
  return Invalid(name, "at least " + std::to_string(least), std::to_string(s.value.i), "pass a larger number");
}

// Bound of strides and widths of windows: sums and products of one of them with a size do not overflow.
inline constexpr int64_t kMostPlaces = (int64_t{1} << 31) - 1;
inline Status Places(const lz_scalar& s, std::string_view name, int64_t least) {
  if (s.value.i <= kMostPlaces) return AtLeast(s, name, least);
  return Invalid(name, "at most " + std::to_string(kMostPlaces), std::to_string(s.value.i), "pass a smaller number");
}

inline Status Finite(const lz_scalar& s, std::string_view name) {
  if (std::isfinite(s.value.f)) return {};
  return Invalid(name, "a finite number", NumberText(s.value.f), "leave it out for the default");
}

inline std::string ShapeText(const lz_tensor& t) {
  std::string text = "(";
  for (int i = 0; i < t.ndim; ++i) text += (i ? ", " : "") + std::to_string(t.shape[i]);
  return text + ")";
}

}  // namespace lz::ops
