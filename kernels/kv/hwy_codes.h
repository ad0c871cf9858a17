// Rows of floats as an 8-bit cache stores them, CPU SIMD: divided by the scale of their head and rounded once. Include
// only from files that Highway compiles per target.
#if defined(LZ_KERNELS_KV_HWY_CODES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_KV_HWY_CODES_H_
#undef LZ_KERNELS_KV_HWY_CODES_H_
#else
#define LZ_KERNELS_KV_HWY_CODES_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "ops/common/kv_rows.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;
using Bytes = hn::Rebind<uint8_t, D>;
inline constexpr D kD{};
inline constexpr int64_t kL = int64_t(hn::MaxLanes(D()));

struct Int8 {
  static hn::Vec<Bytes> Code(hn::Vec<D> v) {  // 0 for NaN
    const auto most = hn::Set(kD, 127.0f);
    const auto number = hn::IfThenElseZero(hn::Eq(v, v), hn::Min(hn::Max(v, hn::Neg(most)), most));
    return hn::BitCast(Bytes(), hn::DemoteTo(hn::Rebind<int8_t, D>(), hn::NearestInt(number)));
  }
};

// A float with `kMantissa` bits after the leading one, least exponent 2^kLeast and largest code kMost.
template <int kMantissa, int kLeast, uint32_t kMost>
struct Float8 {
  static hn::Vec<Bytes> Code(hn::Vec<D> v) {
    const DU d;
    constexpr int kDropped = 23 - kMantissa;
    constexpr uint32_t kBias = uint32_t(127 + kLeast - 1) << 23;  // bits of the float whose code is 0
    const auto sign = hn::ShiftLeft<7>(hn::ShiftRight<31>(hn::BitCast(d, v)));
    const auto bits = hn::BitCast(d, hn::Abs(v));
    // Rounding carries into the exponent. Below the least exponent, an addition drops the bits below one step.
    const auto odd = hn::And(hn::ShiftRight<kDropped>(bits), hn::Set(d, 1));
    const auto up = hn::Add(hn::Add(bits, odd), hn::Set(d, (1u << (kDropped - 1)) - 1));
    const auto normal = hn::ShiftRight<kDropped>(hn::Sub(up, hn::Set(d, kBias)));
    const auto anchor = hn::BitCast(kD, hn::Set(d, uint32_t(127 + kLeast + kDropped) << 23));
    const auto small = hn::Sub(hn::BitCast(d, hn::Add(hn::Abs(v), anchor)), hn::BitCast(d, anchor));
    const auto is_small = hn::Lt(bits, hn::Set(d, uint32_t(127 + kLeast) << 23));
    const auto code = hn::Min(hn::IfThenElse(is_small, small, normal), hn::Set(d, kMost));
    const auto is_nan = hn::Gt(bits, hn::Set(d, 0x7f800000u));
    return hn::TruncateTo(Bytes(), hn::Or(hn::IfThenElse(is_nan, hn::Set(d, 0x7f), code), sign));
  }
};
using E4M3 = Float8<3, -6, 0x7e>;
using E5M2 = Float8<2, -14, 0x7b>;

template <class To, class From>
void StoreRow(const From* from, int64_t n, float unit, uint8_t* to) {
  const auto by = hn::Set(kD, unit);
  int64_t i = 0;
  for (; i + kL <= n; i += kL) hn::StoreU(To::Code(hn::Div(LoadF32(kD, from + i), by)), Bytes(), to + i);
  if (i == n) return;
  uint8_t codes[kL];
  hn::StoreU(To::Code(hn::Div(LoadF32N(kD, from + i, size_t(n - i)), by)), Bytes(), codes);
  std::memcpy(to + i, codes, size_t(n - i));
}

// Stores row i in a slot, head by head.
template <class To, class From>
void Append(const lz_tensor& cache, const lz_tensor& rows, const View& scale, int64_t slot, int64_t i) {
  const int64_t size = cache.shape[1];
  uint8_t* to = Data<uint8_t>(cache) + slot / size * cache.strides[0] + slot % size * cache.strides[1];
  const From* from = Data<const From>(rows) + i * rows.strides[0];
  for (int64_t h = 0; h < cache.shape[2]; ++h) {
    StoreRow<To>(from + h * rows.strides[1], cache.shape[3], ops::kv::ScaleOf(scale, h), to + h * cache.strides[2]);
  }
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
