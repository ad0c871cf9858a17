// Arithmetic of two tensors, CPU SIMD, FP32 arithmetic, one pass.
//   input, output [..., n]  f32|f16|bf16, rows dense, leading strides free; output may alias input
//   other                   dtype of input, last axis dense, broadcast to input
// Workspace: none. Deterministic. Source: own; definition in ops/elementwise/binary.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/binary/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/elementwise/threads.h"
#include "kernels/rows.h"
#include "kernels/spec.h"
#include "ops/elementwise/binary.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::elementwise_binary;

struct Arithmetic {
  int64_t function;
  float scale;

  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x, V y) const {
    y = hn::Mul(y, hn::Set(d, scale));
    switch (function) {
      case kAdd: return hn::Add(x, y);
      case kSub: return hn::Sub(x, y);
      case kMul: return hn::Mul(x, y);
      case kDiv: return hn::Div(x, y);
      case kMaximum: return hn::IfThenElse(hn::Or(hn::Gt(x, y), hn::IsNaN(x)), x, y);
      default: return hn::IfThenElse(hn::Or(hn::Lt(x, y), hn::IsNaN(x)), x, y);
    }
  }
};

// `other` has one value for a whole row.
template <class T>
struct WithRowValue {
  Arithmetic f;
  float value;
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V x) const {
    return f(d, x, hn::Set(d, value));
  }
};

// `t` with the axes of `like`: stride 0 along axes that repeat.
struct Broadcast {
  Broadcast(const lz_tensor& t, const lz_tensor& like) : tensor(t) {
    for (int i = 1; i <= like.ndim; ++i) {
      const bool repeats = i > t.ndim || t.shape[t.ndim - i] == 1;
      strides[like.ndim - i] = repeats ? 0 : t.strides[t.ndim - i];
    }
    tensor.ndim = like.ndim;
    tensor.shape = like.shape;
    tensor.strides = strides;
  }
  Broadcast(const Broadcast&) = delete;
  int64_t strides[8];
  lz_tensor tensor;
};

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &out = args->tensors[kOutput];
  const Broadcast other(args->tensors[kOther], x);
  const Arithmetic f = {args->scalars[kFunction].value.i, float(args->scalars[kScale].value.f)};
  const int64_t rows = NumRows(x), n = x.ndim > 0 ? x.shape[x.ndim - 1] : 1;
  const Rows<const T> from = RowsOf<const T>(x), with = RowsOf<const T>(other.tensor);
  const Rows<T> to = RowsOf<T>(out);
  const lz_kernel_args call = AloneIfSmall(args, rows * n);
  if (n == 1 || other.strides[x.ndim - 1] != 0) {
    MapRows(&call, rows, n, f, to, from, with);
    return 0;
  }
  ParallelFor(&call, rows, 16384 / (n + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const WithRowValue<T> g = {f, ToFloat(with.data[with.offsets[r]])};
      MapRow(to.data + to.offsets[r], n, g, from.data + from.offsets[r]);
    }
  });
  return 0;
}

LZ_LAUNCH_BY_FLOAT(kInput);
}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

constexpr auto kConstraints = std::to_array<Constraint>({
    {"other.same_dtype", Rel::kEq, 1},
});
constexpr std::array kFamily = {
    CpuSpec("hwy.elementwise.binary", &LaunchBest, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
