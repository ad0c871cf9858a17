// Mixture of experts in bf16, column-major weights (gpt_oss's), with AVX512-BF16's dot products for more than four rows
// of an expert.
//   input [..., d], output [..., m]  bf16     weights and biases as in ops/moe/fused.h, bf16
//   expert_ids [..., k]  i32|i64     expert_weights [..., k]  any float dtype
//   The rows axis of the weights is dense, the last one of all other tensors.
// Workspace: order of the rows, hidden rows, FP32 sums. Deterministic: a token's experts are summed in ascending order.
// Source: own. VDPBF16PS sums pairs of products in FP32 and treats denormals as zero; g and u stay in FP32, h is
// rounded to bf16.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/fused/x86_avx512bf16_column_major.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/gemm/x86_panel_tile.h"
#include "kernels/moe/hwy_expert_column_major.h"
#include "kernels/spec.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {

struct InBF16 {
  template <class T>
  static int64_t WideSize(int64_t, int64_t) {
    return 0;
  }
  template <int kParts, class X, class Body>
  static void Multiply(const lz_kernel_args* args, const column_major::Operands<BF16, X>& of, float*,
                       const Body& body) {
    const auto row_of = [&](int64_t row) { return &of.x(row)->bits; };
    std::array<panels::Weights<uint16_t>, kParts> weights;
    for (int p = 0; p < kParts; ++p)
      weights[p] = {&of.weights[p].data->bits, of.weights[p].stride, /*column_major=*/true};
    const panels::Size size = {of.rows, of.outputs, of.weights[0].k};
    panels::Multiply<kParts, uint16_t>(args, size, row_of, panels::bf16::Packed{weights.data()},
                                       &panels::bf16::AddPanel, body);
  }
};
using Expert = moe::ExpertColumnMajor<BF16, InBF16>;

int32_t Launch(const lz_kernel_args* args) {
  moe::RunExperts<BF16, Expert>(args);
  return 0;
}
uint64_t Workspace(const lz_kernel_args* args) { return moe::WorkspaceOf<Expert>(args); }

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);
LZ_HWY_EXPORT(Workspace);

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"gate_weight.columns_dense", Rel::kEq, 1},
    {"down_weight.columns_dense", Rel::kEq, 1},
    {"up_weight.columns_dense", Rel::kEq, 1},
    {"gate_bias.last_dim_stride1", Rel::kEq, 1},
    {"up_bias.last_dim_stride1", Rel::kEq, 1},
    {"down_bias.last_dim_stride1", Rel::kEq, 1},
});
constexpr std::array kFamily = {CpuSpec("x86.moe.fused_avx512bf16_column_major", &LaunchBest,
                                        {.operation = "moe.fused",
                                         .dtypes = Mask(DType::kBF16),
                                         .constraints = kConstraints,
                                         .accepts = kAcceptsAll,
                                         .strides = Strides::kAny,
                                         .priority = 70,
                                         .workspace = &WorkspaceBest})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
