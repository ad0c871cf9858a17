// Cross attention over a paged cache on the CPU, SIMD: the computation of kernels/attention/loop.h over CSR pages.
//   query [b, s_q, h_q, d_qk]  f32|f16|bf16; caches [pages, page_size, h_kv, d] kCaches, last axis dense
// Invalid index data: fails with 1 before anything is written. Workspace and determinism: as in the dense kernels.
#include "ops/attention/paged_cross.h"

#include "kernels/attention/pages.h"
#include "kernels/spec.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_paged_cross;
using attention::Problem;

Problem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &lse = t[kLse];
  Problem p = {.dtype = DTypeOf(t[kQuery])};
  p.b = args->axes[kB];
  p.s_q = args->axes[kSQ];
  p.h_q = args->axes[kHQ];
  p.d_qk = args->axes[kDQK];
  p.q = attention::RowsOf(t[kQuery], 0, 1, 2);
  p.out = attention::RowsOf(t[kOutput], 0, 1, 2);
  p.scale = float(args->scalars[kSmScale].value.f);
  p.softcap = float(args->scalars[kSoftcap].value.f);
  p.sinks = attention::Optional(t[kSinks]);
  if (Given(lse)) {
    p.lse = Data<float>(lse);
    p.lse_b = lse.strides[0], p.lse_h = lse.strides[1], p.lse_s = lse.strides[2];
  }
  return attention::OverCsrPages(p, {t[kPagedKCache], t[kPagedVCache], t[kKScale], t[kVScale]},
                                 {t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen]});
}

int32_t Launch(const lz_kernel_args* args) {
  const Problem p = MakeProblem(args);
  return ValidPaging(p) ? attention::Run(attention::WithoutEmptyPages(p), args) : 1;
}
uint64_t Workspace(const lz_kernel_args* args) {
  return attention::WorkspaceOf(attention::WithoutEmptyPages(MakeProblem(args)), args);
}

constexpr auto kConstraints = std::to_array<Constraint>({{"paged_k_cache.dtype", Rel::kInMask, attention::kCaches}});
constexpr std::array<std::string_view, 6> kAccepts = {"sm_scale", "softcap", "sinks",
                                                      "k_scale",  "v_scale", "return_lse"};
constexpr KernelSpec Spec(std::string_view id) {
  return CpuSpec(id, &Launch,
                 {.constraints = kConstraints, .accepts = kAccepts, .numerics = "fp32", .workspace = &Workspace});
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("hwy.attention.cross.decode.paged"),
    Spec("hwy.attention.cross.prefill.paged"),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
