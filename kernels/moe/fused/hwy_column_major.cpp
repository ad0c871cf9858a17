// Mixture of experts, CPU SIMD, column-major weights (gpt_oss's).
//   input [..., d], output [..., m]  f32|bf16|f16     weights and biases as in ops/moe/fused.h, dtype of input
//   expert_ids [..., k]  i32|i64     expert_weights [..., k]  any float dtype
//   The rows axis of the weights is dense, the last one of all other tensors.
// Workspace: order of the rows, hidden rows, FP32 sums; for more than four rows of an expert, these as f32 if they are
// not. Deterministic: a token's experts are summed in ascending order. Source: own. FP32 sums as in
// hwy.mlp.linear.column_major; g and u stay in FP32, h is rounded to bf16 if the input is bf16.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/fused/hwy_column_major.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/moe/hwy_expert_column_major.h"
#include "kernels/spec.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using ops::moe_fused::kInput;

template <class T>
using Expert = moe::ExpertColumnMajor<T, column_major::GemmFP32>;

int32_t Launch(const lz_kernel_args* args) {
  WithFloatType(DTypeOf(args->tensors[kInput]),
                [&](auto type) { moe::RunExperts<decltype(type), Expert<decltype(type)>>(args); });
  return 0;
}
uint64_t Workspace(const lz_kernel_args* args) {
  return WithFloatType(DTypeOf(args->tensors[kInput]),
                       [&](auto type) { return moe::WorkspaceOf<Expert<decltype(type)>>(args); });
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);
LZ_HWY_EXPORT(Workspace);

constexpr auto kConstraints = std::to_array<Constraint>({
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"gate_weight.columns_dense", Rel::kEq, 1},
    {"down_weight.columns_dense", Rel::kEq, 1},
    {"up_weight.columns_dense", Rel::kEq, 1},
    {"gate_bias.last_dim_stride1", Rel::kEq, 1},
    {"up_bias.last_dim_stride1", Rel::kEq, 1},
    {"down_bias.last_dim_stride1", Rel::kEq, 1},
});
constexpr std::array kFamily = {CpuSpec("hwy.moe.fused_column_major", &LaunchBest,
                                        {.operation = "moe.fused",
                                         .constraints = kConstraints,
                                         .accepts = kAcceptsAll,
                                         .strides = Strides::kAny,
                                         .priority = 60,
                                         .workspace = &WorkspaceBest})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
