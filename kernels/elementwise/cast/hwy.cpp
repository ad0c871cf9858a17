// Conversions between float dtypes, CPU SIMD, one pass, bit-exact.
//   input [..., n]  f32|f16|bf16, rows dense, leading strides free     output [..., n]  any of them or f64
// Workspace: none. Deterministic. Source: own; definition in ops/elementwise/cast.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/cast/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/elementwise/threads.h"
#include "kernels/rows.h"
#include "kernels/spec.h"
#include "ops/elementwise/cast.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::elementwise_cast;

template <class T>
void ToDouble(const lz_kernel_args* args, int64_t n) {
  const Rows<const T> from = RowsOf<const T>(args->tensors[kInput]);
  const Rows<double> to = RowsOf<double>(args->tensors[kOutput]);
  ParallelFor(args, NumRows(args->tensors[kInput]), 16384 / (n + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x = from.data + from.offsets[r];
      double* out = to.data + to.offsets[r];
      for (int64_t i = 0; i < n; ++i) out[i] = double(ToFloat(x[i]));
    }
  });
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &out = args->tensors[kOutput];
  const int64_t n = x.ndim > 0 ? x.shape[x.ndim - 1] : 1;
  return WithFloatType(DTypeOf(x), [&](auto from) {
    using From = decltype(from);
    if (DTypeOf(out) == DType::kF64) {
      ToDouble<From>(args, n);
      return int32_t{0};
    }
    return WithFloatType(DTypeOf(out), [&](auto to) {
      const lz_kernel_args call = AloneIfSmall(args, NumRows(x) * n);
      MapRows(
          &call, NumRows(x), n, [](auto, auto v) HWY_ATTR { return v; }, RowsOf<decltype(to)>(out),
          RowsOf<const From>(x));
      return int32_t{0};
    });
  });
}
}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
LZ_HWY_KERNEL(CpuSpec("hwy.elementwise.cast", &LaunchBest));
#endif
