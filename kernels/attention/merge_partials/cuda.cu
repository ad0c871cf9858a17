// attention.merge.partials on CUDA: any number of parts in one launch, each read once.
//   partials [splits, n, h, d]  f32|f16|bf16, last dim dense     part_lse, row_sum [splits, n, h] f32
//   sinks [h] any float, optional     output [n, h, d] f32|bf16|f64     lse [n, h] f32
// Workspace: none. Deterministic. Safe in graph captures. FP32, FP64 for an output in it. Source: own;
// arXiv:2307.08691, section 2.3.
#include "kernels/attention/merge_cuda.h"
#include "kernels/spec.h"
#include "ops/attention/merge_partials.h"

namespace lz {
namespace {
using namespace lz::ops::attention_merge_partials;

template <class T, class Out>
int32_t LaunchAs(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &out = t[kOutput], &lse = t[kLse], &sinks = t[kSinks], &sum = t[kRowSum];
  attention::MergeProblem<T, Out> p = {.side = {attention::MergeSideOf<T>(t[kPartials], t[kPartLse])},
                                       .out = Data<Out>(out),
                                       .out_n = out.strides[0],
                                       .out_h = out.strides[1],
                                       .lse = Data<float>(lse),
                                       .lse_n = lse.strides[0],
                                       .lse_h = lse.strides[1],
                                       .parts = int32_t(args->axes[kSplits]),
                                       .h = int32_t(args->axes[kH]),
                                       .d = int32_t(args->axes[kD]),
                                       .rows = args->axes[kN] * args->axes[kH]};
  if (Given(sum)) {
    p.side[0].sum = Data<const float>(sum);
    p.side[0].sum_part = sum.strides[0], p.side[0].sum_n = sum.strides[1], p.side[0].sum_h = sum.strides[2];
  }
  if (Given(sinks)) p.sinks = Data<void>(sinks), p.sinks_type = DTypeOf(sinks), p.sinks_stride = sinks.strides[0];
  return attention::LaunchMerge<false>(p, args->stream);
}

int32_t Launch(const lz_kernel_args* args) {
  return WithCudaFloat(DTypeOf(args->tensors[kPartials]), [&](auto type) {
    using T = decltype(type);
    switch (DTypeOf(args->tensors[kOutput])) {
      case DType::kBF16: return LaunchAs<T, __nv_bfloat16>(args);
      case DType::kF64: return LaunchAs<T, double>(args);
      default: return LaunchAs<T, float>(args);
    }
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"h * d", Rel::kLe, int64_t{1} << 30},
    {"splits", Rel::kLe, int64_t{1} << 30},
});
constexpr std::array kFamily = {
    CudaSpec("cuda.attention.merge.partials", &Launch, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
