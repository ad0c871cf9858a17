// Cross attention on the CPU, SIMD: the computation of kernels/attention/loop.h, never causal.
//   query [b, s_q, h_q, d_qk], key [b, s_kv, h_kv, d_qk], value [b, s_kv, h_kv, d_v]  f32|f16|bf16, last axis dense
// Workspace and determinism: as in the dense kernels.
#include "ops/attention/cross.h"

#include "core/kernel.h"
#include "kernels/attention/problem.h"

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
uint64_t Workspace(const lz_kernel_args* args) {
  const Problem p = MakeProblem(args);
  return p.h_q == 0 ? 0 : attention::MakePlan(p, args->parallel).bytes();
}

constexpr std::array<std::string_view, 5> kAccepts = {"scale", "attn_mask", "softcap", "sinks", "return_lse"};
constexpr KernelSpec Spec(std::string_view id, std::string_view operation) {
  return {.id = id,
          .operation = operation,
          .dtypes = kF32F16BF16,
          .accepts = kAccepts,
          .strides = Strides::kLastDimDense,
          .priority = 80,
          .deterministic = true,
          .numerics = "fp32",
          .launch = &Launch,
          .workspace = &Workspace};
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("hwy.attention.cross.decode", "attention.cross.decode"),
    Spec("hwy.attention.cross.prefill", "attention.cross.prefill"),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
