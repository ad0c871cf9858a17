// Cross attention on the CPU, SIMD: the computation of kernels/attention/loop.h, never causal.
//   query [b, s_q, h_q, d_qk], key [b, s_kv, h_kv, d_qk], value [b, s_kv, h_kv, d_v]  f32|f16|bf16, last axis dense
// Workspace and determinism: as in the dense kernels.
#include "ops/attention/cross.h"

#include "kernels/attention/problem.h"
#include "kernels/spec.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_cross;
using attention::Problem;

Problem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  Problem p = attention::DenseProblem({t[kQuery], t[kKey], t[kValue], t[kAttnMask], t[kOutput], t[kLse]});
  p.scale = float(args->scalars[kScale].value.f);
  p.softcap = float(args->scalars[kSoftcap].value.f);
  p.sinks = attention::Optional(t[kSinks]);
  return p;
}

int32_t Launch(const lz_kernel_args* args) { return attention::Run(MakeProblem(args), args); }
uint64_t Workspace(const lz_kernel_args* args) { return attention::WorkspaceOf(MakeProblem(args), args); }

constexpr std::array<std::string_view, 5> kAccepts = {"scale", "attn_mask", "softcap", "sinks", "return_lse"};
constexpr KernelSpec Spec(std::string_view id) {
  return CpuSpec(id, &Launch, {.accepts = kAccepts, .numerics = "fp32", .workspace = &Workspace});
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("hwy.attention.cross.decode"),
    Spec("hwy.attention.cross.prefill"),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
