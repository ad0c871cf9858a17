// Mixture of experts, CPU SIMD, row-major weights.
//   input [..., d], output [..., m]  f32|bf16|f16     weights and biases as in ops/moe/fused.h, dtype of input
//   expert_ids [..., k]  i32|i64     expert_weights [..., k]  any float dtype; last axes dense
// Workspace: order of the rows, hidden rows, FP32 sums. Deterministic: a token's experts are summed in ascending order.
// Source: own. FP32 sums as in hwy.mlp.linear.gemm; g and u stay in FP32, h is rounded to bf16 if the input is bf16.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/fused/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/gemm/feed_forward.h"
#include "kernels/moe/hwy_experts.h"
#include "kernels/spec.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::moe_fused;

template <class T>
class Expert {
 public:
  static int64_t PackedFloats(const lz_kernel_args*) { return 0; }

  Expert(const lz_kernel_args* args, int64_t e)
      : hidden_(&args->tensors[kGateWeight], &args->scalars[kActivation], e),
        down_(args->tensors[kDownWeight], args->tensors[kDownBias], e, 0, 1, args->tensors[kDownWeight].shape[1]) {}

  void Hidden(const lz_kernel_args* args, const T* const* x, const float* scales, int64_t count, float*,
              Intermediate<T>* h) const {
    hidden_.Run(args, x, scales, count, h);
  }
  template <class Body>
  void Down(const lz_kernel_args* args, const Intermediate<T>* const* h, int64_t count, float*,
            const Body& body) const {
    ForBlocks<T>(args, count, down_.rows, down_.k, [&](int64_t row, int height, int64_t first, int64_t columns) {
      BlockSums sums;
      down_.Block(h + row, nullptr, height, first, columns, sums);
      for (int i = 0; i < height; ++i) body(row + i, first, columns, sums + i * gemm::kBlockColumns);
    });
  }

 private:
  HiddenRows<T> hidden_;
  Product<T> down_;
};

int32_t Launch(const lz_kernel_args* args) {
  WithFloatType(DTypeOf(args->tensors[kInput]),
                [&](auto type) { moe::RunExperts<decltype(type), Expert<decltype(type)>>(args); });
  return 0;
}
uint64_t Workspace(const lz_kernel_args* args) { return moe::WorkspaceOf<Expert<float>>(args); }

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);
LZ_HWY_EXPORT(Workspace);

constexpr std::array kFamily = {
    CpuSpec("hwy.moe.fused", &LaunchBest, {.accepts = kAcceptsAll, .priority = 60, .workspace = &WorkspaceBest})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
