// Rotary position embedding, CPU SIMD: the tables' row of a position is converted once and used for all heads
// (kernels/posenc/hwy_rotate.h).
//   input        [b, s, h, d]              f32|f16|bf16, last axis dense, other strides free (BSHD and BHSD), d <= 1024
//   cos, sin     [s, w] [b, s, w] [n, w]   f32|f16|bf16, independent of input; rows dense
//   position_ids [s] [b, s]                i32|i64, optional
//   output       [b, s, h, d]              dtype of input; may alias input
// Workspace: none. Deterministic. Source: own; formula from arXiv:2104.09864 eq. 34.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/posenc/rope/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/posenc/hwy_rotate.h"
#include "kernels/rows.h"
#include "kernels/simd.h"
#include "kernels/spec.h"
#include "ops/common/rope.h"
#include "ops/posenc/rope.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::posenc_rope;

template <class T>
void RotatePosition(const lz_kernel_args* args, int64_t b, int64_t s, const Form& form, const Factors& f) {
  const lz_tensor &x = args->tensors[kInput], &out = args->tensors[kOutput];
  const T* px = Data<const T>(x) + b * x.strides[kB] + s * x.strides[kS];
  T* pout = Data<T>(out) + b * out.strides[kB] + s * out.strides[kS];
  for (int64_t h = 0; h < x.shape[kH]; ++h, px += x.strides[kH], pout += out.strides[kH]) {
    RotateHead(px, pout, form, f);
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &cos = args->tensors[kCos], &sin = args->tensors[kSin];
  const TableRows rows(args);
  if (!rows.AllInRange()) return kPositionOutOfRange;
  const Form form = {.d = x.shape[kD],
                     .r = args->scalars[kRotaryDim].value.i,
                     .width = cos.shape[cos.ndim - 1],
                     .interleaved = args->scalars[kInterleaved].value.i != 0,
                     .sign = args->scalars[kInverse].value.i != 0 ? -1.0f : 1.0f};
  const int64_t sequence = x.shape[kS], per_position = x.shape[kH] * form.d;
  // 16k elements take about 2 us on one core: less does not pay for waking another thread.
  ParallelFor(args, x.shape[kB] * sequence, 16384 / (per_position + 1) + 1, [&](int64_t begin, int64_t end) {
    Factors f;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / sequence, s = i % sequence;
      WithFloatType(DTypeOf(cos), [&](auto t) {
        using T = decltype(t);
        MakeFactors(Data<const T>(cos) + rows.Offset(cos, b, s), Data<const T>(sin) + rows.Offset(sin, b, s), form, &f);
      });
      WithFloatType(DTypeOf(x), [&](auto t) {
        using T = decltype(t);
        OrderFactors<T>(form, &f);
        RotatePosition<T>(args, b, s, form, f);
      });
    }
  });
  return 0;
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

constexpr auto kConstraints = std::to_array<Constraint>({
    {"d", Rel::kLe, 1024},
    {"cos.dtype", Rel::kInMask, kF32F16BF16},
});
constexpr auto kAccepts = std::to_array<std::string_view>({"position_ids", "inverse", "rotary_dim"});
constexpr std::array kFamily = {
    CpuSpec("hwy.posenc.rope", &LaunchBest, {.constraints = kConstraints, .accepts = kAccepts})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
