// attention.merge on CUDA: two parts in one launch.
//   v_a, v_b [n, h, d]  f32|f16|bf16, last dim dense     s_a, s_b [n, h] f32     sinks [h] any float, optional
//   output [n, h, d]  dtype of v_a; may alias a part of the same strides     lse [n, h] f32
// Workspace: none. Deterministic. Safe in graph captures. FP32 (class fp32). Source: own; arXiv:2307.08691,
// section 2.3.
#include "kernels/attention/merge_cuda.h"
#include "kernels/spec.h"
#include "ops/attention/merge.h"

namespace lz {
namespace {
using namespace lz::ops::attention_merge;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &out = t[kOutput], &lse = t[kLse], &sinks = t[kSinks];
  return WithCudaFloat(DTypeOf(out), [&](auto type) {
    using T = decltype(type);
    attention::MergeProblem<T, T> p = {
        .side = {attention::MergeSideOf<T>(t[kVA], t[kSA]), attention::MergeSideOf<T>(t[kVB], t[kSB])},
        .out = Data<T>(out),
        .out_n = out.strides[0],
        .out_h = out.strides[1],
        .lse = Data<float>(lse),
        .lse_n = lse.strides[0],
        .lse_h = lse.strides[1],
        .parts = 2,
        .h = int32_t(args->axes[kH]),
        .d = int32_t(args->axes[kD]),
        .rows = args->axes[kN] * args->axes[kH]};
    if (Given(sinks)) p.sinks = Data<void>(sinks), p.sinks_type = DTypeOf(sinks), p.sinks_stride = sinks.strides[0];
    return attention::LaunchMerge<true>(p, args->stream);
  });
}

constexpr auto kConstraints =
    std::to_array<Constraint>({kOnCompiledSm, kOnDriver, {"h * d", Rel::kLe, int64_t{1} << 30}});
constexpr std::array kFamily = {CudaSpec("cuda.attention.merge", &Launch,
                                         {.constraints = kConstraints, .accepts = kAcceptsAll, .numerics = "fp32"})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
