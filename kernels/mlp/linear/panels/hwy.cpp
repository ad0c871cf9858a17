// Linear with weights in panels of 64 columns, CPU SIMD, for any number of rows.
//   input  [..., k]  f32|bf16, last dim dense     panels [n / 64, k, 64]  dtype of input, contiguous
//   bias   [n]       dtype of input, optional     output [..., n]
// Workspace: none. Deterministic. Source: own. FP32 sums over k in order, in blocks of 256.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/panels/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/mlp/linear/panels/blocks.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_linear_panels;
using panels::Sums;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
// With panels::kTileRows rows, sums fill the registers.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kVectors = 4;
#else
constexpr int kVectors = 2;
#endif

// A value of k of kVectors vectors of columns; in bf16 two, of which the even ones are the high halves of lanes.
template <int R>
HWY_INLINE void Step(const float* const* x, const float* w, int64_t i, VF (*acc)[kVectors]) {
  VF ws[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) ws[v] = hn::LoadU(DF(), w + i * kPanel + v * hn::Lanes(DF()));
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const VF xs = hn::Set(DF(), x[r][i]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(xs, ws[v], acc[r][v]);
  }
}
template <int R>
HWY_INLINE void Step(const BF16* const* x, const BF16* w, int64_t i, VF (*acc)[kVectors]) {
  const hn::RebindToUnsigned<DF> d32;
  const hn::Repartition<uint16_t, DF> d16;
#pragma GCC unroll 8
  for (int half = 0; half < 2; ++half) {
    VF ws[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const auto pairs = hn::BitCast(d32, hn::LoadU(d16, &w[i * kPanel + v * hn::Lanes(d16)].bits));
      ws[v] = hn::BitCast(DF(), half == 0 ? hn::ShiftLeft<16>(pairs) : hn::And(pairs, hn::Set(d32, 0xffff0000u)));
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const VF xs = hn::Set(DF(), ToFloat(x[r][i + half]));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(xs, ws[v], acc[r][v]);
    }
  }
}

// Adds to `sums` the products of R rows with a panel, `size` values of k.
template <int R, class T>
HWY_NOINLINE void AddTile(const T* const* x, const T* w, int64_t size, Sums* sums) {
  constexpr int kStep = sizeof(T) == 2 ? 2 : 1;  // values of k
  const int64_t lanes = int64_t(hn::Lanes(DF()));
  for (int64_t column = 0; column < kPanel; column += kVectors * lanes) {
    VF acc[R][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(DF());
    for (int64_t i = 0; i < size; i += kStep) Step<R>(x, w + column * kStep, i, acc);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        float* sum = sums[r] + column + v * lanes;
        hn::StoreU(hn::Add(hn::LoadU(DF(), sum), acc[r][v]), DF(), sum);
      }
  }
}

template <class T>
void Run(const lz_kernel_args* args) {
  panels::ForBlocks<T>(
      args,
      [](const T* const* x, int64_t tile, const T* w, int64_t size, Sums* sums) {
        panels::WithTile(tile, [&](auto rows) { AddTile<rows()>(x, w, size, sums); });
      },
      [](const float* sums, const T* bias, T* to) {
        const DF d;
        for (int64_t column = 0; column < kPanel; column += int64_t(hn::Lanes(d))) {
          VF sum = hn::LoadU(d, sums + column);
          if (bias) sum = hn::Add(sum, LoadF32(d, bias + column));
          StoreF32(d, sum, to + column);
        }
      });
}

int32_t Launch(const lz_kernel_args* args) {
  DTypeOf(args->tensors[kInput]) == DType::kF32 ? Run<float>(args) : Run<BF16>(args);
  return 0;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Launch);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }

constexpr auto kConstraints = std::to_array<Constraint>({
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"panels.contiguous", Rel::kEq, 1},
    {"bias.last_dim_stride1", Rel::kEq, 1},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.mlp.linear.panels",
     .operation = "mlp.linear.panels",
     .dtypes = ops::mlp_linear_panels::kPanelTypes,
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kAny,
     .priority = 60,
     .deterministic = true,
     .launch = &LaunchBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
