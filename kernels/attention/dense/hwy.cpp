// Attention on the CPU, SIMD: prefill and decode over dense keys and values, computed by kernels/attention/loop.h.
//   query [b, s_q, h_q, d_qk], key [b, s_kv, h_kv, d_qk], value [b, s_kv, h_kv, d_v]  f32|f16|bf16, last axis dense
//   output [b, s_q, h_q, d_v] dtype of query; lse [b, h_q, s_q] f32
// Deterministic, FP32 throughout (class fp32). Workspace: scratch per worker.
#include "kernels/attention/problem.h"
#include "kernels/launch.h"
#include "kernels/spec.h"
#include "ops/attention/dense.h"

namespace lz {
namespace attention {
int32_t Run(const Problem& p, const lz_kernel_args* args) {
  if (p.b == 0 || p.s_q == 0 || p.h_q == 0) return 0;
  switch (p.cache) {
    case DType::kF32: return RunF32(p, args);
    case DType::kF16: return RunF16(p, args);
    case DType::kBF16: return RunBF16(p, args);
    case DType::kI8: return RunI8(p, args);
    case DType::kF8E4M3: return RunF8E4M3(p, args);
    default: return RunF8E5M2(p, args);
  }
}
}  // namespace attention

namespace {
using namespace lz::ops::attention_dense;
using attention::Optional;
using attention::Problem;

Problem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  Problem p = attention::DenseProblem({t[kQuery], t[kKey], t[kValue], t[kAttnMask], t[kOutput], t[kLse]});
  p.scale = float(s[kScale].value.f);
  p.softcap = float(s[kSoftcap].value.f);
  p.causal = s[kCausal].value.i != 0;
  p.window = s[kWindow].given ? std::min(s[kWindow].value.i, attention::kMaxWindow) : -1;
  p.sinks = Optional(t[kSinks]);
  p.slopes = Optional(t[kAlibiSlopes]);
  return p;
}

int32_t Launch(const lz_kernel_args* args) { return attention::Run(MakeProblem(args), args); }
uint64_t Workspace(const lz_kernel_args* args) { return attention::WorkspaceOf(MakeProblem(args), args); }

constexpr std::array<std::string_view, 8> kAccepts = {"causal",  "scale", "attn_mask",    "window",
                                                      "softcap", "sinks", "alibi_slopes", "return_lse"};
constexpr KernelSpec Spec(std::string_view id) {
  return CpuSpec(id, &Launch, {.accepts = kAccepts, .numerics = "fp32", .workspace = &Workspace});
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("hwy.attention.standard.decode"),
    Spec("hwy.attention.gqa.decode"),
    Spec("hwy.attention.standard.prefill"),
    Spec("hwy.attention.gqa.prefill"),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
