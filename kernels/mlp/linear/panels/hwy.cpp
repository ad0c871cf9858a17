// Linear with weights in panels of 64 columns, CPU SIMD, for any number of rows.
//   input  [..., k]  f32|bf16, last dim dense     panels [n / 64, k, 64]  dtype of input, contiguous
//   bias   [n]       dtype of input, optional     output [..., n]
// Workspace: none. Deterministic. Source: own. FP32 sums over k in order, in blocks of at most 1,024.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/panels/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/gemm/hwy_panel_tile.h"
#include "kernels/spec.h"
#include "ops/mlp/linear/panels.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_linear_panels;

template <class T>
void Run(const lz_kernel_args* args) {
  const lz_tensor &input = args->tensors[kInput], &weight = args->tensors[kPanels], &bias = args->tensors[kBias];
  const lz_tensor& output = args->tensors[kOutput];
  const RowOffsets in(input), out(output);
  const int64_t k = weight.shape[1], next = panel_tiles::kTileColumns * (sizeof(T) == 2 ? 2 : 1);
  panels::Multiply<1, T>(
      args, {NumRows(output), weight.shape[0] * kPanel, k}, [&](int64_t row) { return Data<const T>(input) + in[row]; },
      panels::InPlace<T>{Data<const T>(weight), k},
      [&](const T* const* x, int64_t tile, const T* w, int64_t columns, int64_t size, bool more, panels::Sums* sums) {
        panel_tiles::AddPanel(x, tile, w, kPanel, next, columns, size, more, sums);
      },
      [&](int64_t row, int64_t first, int64_t columns, const float* sums, const float*) {
        panel_tiles::Store(sums, Given(bias) ? Data<const T>(bias) + first : nullptr, columns,
                           Data<T>(output) + out[row] + first);
      });
}

int32_t Launch(const lz_kernel_args* args) {
  DTypeOf(args->tensors[kInput]) == DType::kF32 ? Run<float>(args) : Run<BF16>(args);
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
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"panels.contiguous", Rel::kEq, 1},
    {"bias.last_dim_stride1", Rel::kEq, 1},
});
constexpr std::array kFamily = {CpuSpec("hwy.mlp.linear.panels", &LaunchBest,
                                        {.dtypes = ops::mlp_linear_panels::kPanelTypes,
                                         .constraints = kConstraints,
                                         .accepts = kAcceptsAll,
                                         .strides = Strides::kAny,
                                         .priority = 60})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
