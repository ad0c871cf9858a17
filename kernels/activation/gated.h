// f(gate) * up over rows, CPU SIMD, shared by the gated activations. Include only from files that Highway compiles per
// target, after kernels/simd.h.
#if defined(LZ_KERNELS_ACTIVATION_GATED_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ACTIVATION_GATED_H_
#undef LZ_KERNELS_ACTIVATION_GATED_H_
#else
#define LZ_KERNELS_ACTIVATION_GATED_H_
#endif

#include "kernels/rows.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {

// out = f(T{}, d, gate, up): tensors gate, up [..., n] and out, all of T; out may be gate or up.
template <class F>
int32_t RunGated(const lz_kernel_args* args, const lz_tensor& gate, const lz_tensor& up, const lz_tensor& out,
                 const F& f) {
  return WithFloatType(DTypeOf(gate), [&](auto t) {
    using T = decltype(t);
    MapRows<kLongFunction>(
        args, NumRows(gate), gate.shape[gate.ndim - 1], [&](auto d, auto g, auto u) HWY_ATTR { return f(t, d, g, u); },
        RowsOf<T>(out), RowsOf<const T>(gate), RowsOf<const T>(up));
    return int32_t{0};
  });
}

// The same with gate and up in the two halves of `packed`'s last axis.
template <class F>
int32_t RunPackedGated(const lz_kernel_args* args, const lz_tensor& packed, const lz_tensor& out, const F& f) {
  return WithFloatType(DTypeOf(packed), [&](auto t) {
    using T = decltype(t);
    const int64_t n = packed.shape[packed.ndim - 1] / 2;
    const Rows<const T> gate = RowsOf<const T>(packed), up = {gate.data + n, gate.offsets};
    MapRows<kLongFunction>(
        args, NumRows(packed), n, [&](auto d, auto g, auto u) HWY_ATTR { return f(t, d, g, u); }, RowsOf<T>(out), gate,
        up);
    return int32_t{0};
  });
}

}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
