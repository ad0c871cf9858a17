// Feed-forward block, CPU SIMD: gate, up and activation in one pass over their weights, then the down projection.
//   input [..., d], output [..., m]  f32|bf16|f16     weights and biases as in ops/mlp/fused.h, dtype of input
//   last axes dense
// Workspace: the hidden rows. Deterministic. Source: own. FP32 sums as in hwy.mlp.linear.gemm; g and u stay in FP32, h
// is rounded to bf16 if the input is bf16.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/fused/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/gemm/feed_forward.h"
#include "kernels/gemm/hidden_rows.h"
#include "kernels/spec.h"
#include "ops/mlp/fused.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_fused;

template <class T>
void Run(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &out = args->tensors[kOutput], &down = args->tensors[kDownWeight];
  const int64_t rows = NumRows(out), n = down.shape[1], m = down.shape[0];
  const RowOffsets x_row(x), out_row(out);
  const HiddenRows<T> hidden(&args->tensors[kGateWeight], &args->scalars[kActivation], 0);
  const Product<T> product(down, args->tensors[kDownBias], 0, 0, 1, m);
  const T** inputs = static_cast<const T**>(args->workspace);
  const Intermediate<T>** hidden_rows = reinterpret_cast<const Intermediate<T>**>(inputs + kHiddenTileRows);
  Intermediate<T>* h = reinterpret_cast<Intermediate<T>*>(hidden_rows + kHiddenTileRows);
  for (int64_t r = 0; r < std::min(kHiddenTileRows, rows); ++r) hidden_rows[r] = h + r * n;
  for (int64_t base = 0; base < rows; base += kHiddenTileRows) {
    const int64_t count = std::min(kHiddenTileRows, rows - base);
    for (int64_t r = 0; r < count; ++r) inputs[r] = Data<const T>(x) + x_row[base + r];
    hidden.Run(args, inputs, nullptr, count, h);
    ForBlocks<T>(args, count, m, n, [&](int64_t row, int height, int64_t first, int64_t columns) {
      BlockSums sums;
      product.Block(hidden_rows + row, nullptr, height, first, columns, sums);
      for (int i = 0; i < height; ++i) {
        T* to = Data<T>(out) + out_row[base + row + i] + first;
        Tile<T>::Store(sums + i * gemm::kBlockColumns, nullptr, columns, to);
      }
    });
  }
}

int32_t Launch(const lz_kernel_args* args) {
  WithFloatType(DTypeOf(args->tensors[kInput]), [&](auto type) { Run<decltype(type)>(args); });
  return 0;
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

uint64_t Workspace(const lz_kernel_args* args) {
  const int64_t rows = std::min(kHiddenTileRows, NumRows(args->tensors[ops::mlp_fused::kInput]));
  const int64_t n = args->tensors[ops::mlp_fused::kDownWeight].shape[1];
  return uint64_t(kHiddenTileRows * 2 * int64_t(sizeof(void*)) + rows * n * HiddenBytes(DTypeOf(args->tensors[0])));
}

constexpr std::array kFamily = {
    CpuSpec("hwy.mlp.fused", &LaunchBest, {.accepts = kAcceptsAll, .priority = 60, .workspace = &Workspace})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
