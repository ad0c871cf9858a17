// Linear with weights in panels of 64 columns with AVX512-BF16's dot products: a panel has the pairs that they take.
//   input  [..., k]  bf16, last dim dense     panels [n / 64, k, 64]  bf16, contiguous
//   bias   [n]       bf16, optional           output [..., n]
// Workspace: none. Deterministic. Source: own. VDPBF16PS sums pairs of products in FP32 and treats denormals as zero;
// FP32 sums over k in order, in blocks of at most 1,024.
#include "kernels/spec.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include "kernels/gemm/x86_panel_tile.h"
#include "ops/mlp/linear/panels.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear_panels;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &input = args->tensors[kInput], &weight = args->tensors[kPanels], &bias = args->tensors[kBias];
  const lz_tensor& output = args->tensors[kOutput];
  const RowOffsets in(input), out(output);
  const int64_t k = weight.shape[1];
  panels::Multiply<1, uint16_t>(
      args, {NumRows(output), weight.shape[0] * kPanel, k},
      [&](int64_t row) { return Data<const uint16_t>(input) + in[row]; },
      panels::InPlace<uint16_t>{Data<const uint16_t>(weight), k}, &panels::bf16::AddPanel,
      [&](int64_t row, int64_t first, int64_t columns, const float* sums, const float*) {
        panels::bf16::Store(sums, Given(bias) ? Data<const uint16_t>(bias) + first : nullptr, columns,
                            Data<uint16_t>(output) + out[row] + first);
      });
  return 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"panels.contiguous", Rel::kEq, 1},
    {"bias.last_dim_stride1", Rel::kEq, 1},
});
constexpr std::array kFamily = {CpuSpec("x86.mlp.linear.panels.avx512bf16", &Launch,
                                        {.operation = "mlp.linear.panels",
                                         .dtypes = Mask(DType::kBF16),
                                         .constraints = kConstraints,
                                         .accepts = kAcceptsAll,
                                         .strides = Strides::kAny,
                                         .priority = 70})};
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
