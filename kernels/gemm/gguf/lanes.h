// Vectors of packed GGUF weights: a lane is an output column; scales and quantized values of a vector's columns.
// Include only from files that Highway compiles per target.
#if defined(LZ_KERNELS_GEMM_GGUF_LANES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_GEMM_GGUF_LANES_H_
#undef LZ_KERNELS_GEMM_GGUF_LANES_H_
#else
#define LZ_KERNELS_GEMM_GGUF_LANES_H_
#endif

#include "kernels/simd.h"
#include "ops/mlp/linear/gguf.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_linear_gguf;

using DF = hn::CappedTag<float, kGroupRows>;
using DI = hn::Rebind<int32_t, DF>;
using DU8 = hn::Repartition<uint8_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
inline constexpr int kLanes = int(hn::MaxLanes(DF()));
inline constexpr int kVectors = int(kGroupRows) / kLanes;

HWY_INLINE VF Halves(const uint8_t* p) { return LoadF32(DF(), reinterpret_cast<const F16*>(p)); }
HWY_INLINE VF Bytes(const uint8_t* p) {
  const hn::Rebind<uint8_t, DF> d8;
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(d8, p)));
}
HWY_INLINE VF SignedBytes(const uint8_t* p) {
  const hn::Rebind<int8_t, DF> d8;
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
}

// Quantized values in a register. With 16 lanes the compiler would load them again for each use, and loads are
// the bottleneck.
HWY_INLINE hn::Vec<DU8> LoadQuantized(const uint8_t* p) {
  auto weights = hn::LoadU(DU8(), p);
#if HWY_TARGET <= HWY_AVX3
  asm("" : "+v"(weights.raw));
#endif
  return weights;
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
