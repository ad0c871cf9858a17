// Shared by the operations on KV caches: dtypes, the place of a slot, and how a cache stores rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "core/contract.h"
#include "core/view.h"
#include "ops/common/small_float.h"

namespace lz::ops::kv {

inline constexpr DTypeMask kCacheDTypes = kFloats | Mask(DType::kF8E4M3, DType::kF8E5M2, DType::kI8);
inline constexpr std::string_view kLayouts = "NHD: p s h d | HND: p h s d";

// The result of a launch that refuses a slot; nothing is written then.
inline constexpr int32_t kSlotOutOfRange = LZ_LAUNCH_INVALID_INDEX;
inline constexpr int32_t kPairInvalid = LZ_LAUNCH_INVALID_DATA;

// An int8 cache requires a scale.
inline Status CheckScale(std::string_view name, const lz_tensor& cache, const lz_tensor& scale) {
  if (DTypeOf(cache) != DType::kI8 || scale.ndim >= 0) return {};
  return {StatusCode::kInvalidRequest,
          {std::string(name), "a scale for an int8 cache", "nothing", "pass the scale that the cache is stored with"}};
}

// Per tensor (no axis, or one of size 1) or per head.
inline float ScaleOf(const View& scale, int64_t head) {
  if (!scale.given()) return 1;
  if (scale.ndim() == 0) return float(scale.Load(0));
  return float(scale.Get({scale.size(0) == 1 ? 0 : head}));
}

// True if every slot that is not negative is in the cache.
inline bool SlotsValid(const View& slots, int64_t num_slots) {
  for (int64_t i = 0; i < slots.size(0); ++i) {
    if (slots.GetInt({i}) >= num_slots) return false;
  }
  return true;
}

// Stores a value in the cache's dtype: rounded to nearest even; 8 bits saturate, and int8 stores NaN as 0.
inline void StoreValue(const View& cache, int64_t offset, float value) {
  switch (cache.dtype()) {
    case DType::kF8E4M3: cache.data<uint8_t>()[offset] = Encode(kE4M3FN, value, true); return;
    case DType::kF8E5M2: cache.data<uint8_t>()[offset] = Encode(kE5M2, value, true); return;
    case DType::kI8:
      cache.data<int8_t>()[offset] =
          std::isnan(value) ? int8_t{0} : int8_t(std::clamp(std::nearbyint(value), -127.0f, 127.0f));
      return;
    default: cache.Store(offset, value);
  }
}

}  // namespace lz::ops::kv
