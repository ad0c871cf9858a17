// Attention of packed queries over a paged cache on the CPU, SIMD: each sequence is a call of
// kernels/attention/loop.h over its pages.
//   query [total_q, h_q, d_qk]  f32|f16|bf16; caches [pages, page_size, h_kv, d] kCaches, last axis dense
// Invalid index data: fails with 1 before anything is written. Workspace: scratch per worker. Deterministic.
#include "ops/attention/paged_prefill.h"

#include "kernels/attention/pages.h"
#include "kernels/attention/sequences.h"
#include "kernels/spec.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_paged_prefill;
using attention::Problem;

// The part that all sequences share; s_q is an upper bound.
Problem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &lse = t[kLse];
  const lz_scalar* s = args->scalars;
  Problem p = {.dtype = DTypeOf(t[kQuery])};
  p.b = args->axes[kB];
  p.s_q = args->axes[kTotalQ];
  p.h_q = args->axes[kHQ];
  p.d_qk = args->axes[kDQK];
  p.q = attention::RowsOf(t[kQuery], -1, 0, 1);
  p.out = attention::RowsOf(t[kOutput], -1, 0, 1);
  p.scale = float(s[kSmScale].value.f);
  p.softcap = float(s[kSoftcap].value.f);
  p.causal = s[kCausal].value.i != 0;
  const int64_t left = s[kWindowLeft].value.i;
  p.window = left < 0 ? -1 : std::min(left, attention::kMaxWindow) + 1;  // includes the row's own position
  p.sinks = attention::Optional(t[kSinks]);
  p.slopes = attention::Optional(t[kAlibiSlopes]);
  p.split_keys = false;
  if (Given(lse)) {
    p.lse = Data<float>(lse);
    p.lse_s = lse.strides[0], p.lse_h = lse.strides[1];
  }
  return attention::OverCsrPages(p, {t[kPagedKCache], t[kPagedVCache], t[kKScale], t[kVScale]},
                                 {t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen]});
}

Problem SequenceProblem(Problem p, const int32_t* rows, int64_t s) {
  const int64_t size = ByteSize(p.dtype);
  p.b = 1;
  p.s_q = rows[s + 1] - rows[s];
  p.indptr += s;
  p.lengths += s * p.lengths_stride;
  p.q.data += rows[s] * p.q.seq * size;
  p.out.data += rows[s] * p.out.seq * size;
  if (p.lse) p.lse += rows[s] * p.lse_s;
  return p;
}

bool Valid(const Problem& all, const int32_t* rows, int64_t total_q) {
  if (rows[0] != 0 || rows[all.b] > total_q) return false;
  for (int64_t s = 0; s < all.b; ++s) {
    if (rows[s + 1] < rows[s]) return false;
  }
  for (int64_t s = 0; s < all.b; ++s) {
    if (!ValidSequence(SequenceProblem(all, rows, s), 0)) return false;
  }
  return all.indptr[0] == 0;
}

int32_t Launch(const lz_kernel_args* args) {
  const Problem all = MakeProblem(args);
  const auto* rows = Data<const int32_t>(args->tensors[kQOIndptr]);
  const int64_t total_q = args->axes[kTotalQ];
  if (!Valid(all, rows, total_q)) return 1;
  attention::ClearRest(all, rows[all.b], total_q);
  const Problem checked = attention::WithoutEmptyPages(all);
  return attention::RunSequences(checked, all.b, args, [&](int64_t s) { return SequenceProblem(checked, rows, s); });
}

uint64_t Workspace(const lz_kernel_args* args) {
  return attention::WorkspaceOf(attention::WithoutEmptyPages(MakeProblem(args)), args);
}

constexpr auto kConstraints = std::to_array<Constraint>({{"paged_k_cache.dtype", Rel::kInMask, attention::kCaches}});
constexpr std::array<std::string_view, 9> kAccepts = {"sm_scale",     "causal",  "window_left", "softcap",   "sinks",
                                                      "alibi_slopes", "k_scale", "v_scale",     "return_lse"};
constexpr KernelSpec Spec(std::string_view id) {
  return CpuSpec(id, &Launch,
                 {.constraints = kConstraints, .accepts = kAccepts, .numerics = "fp32", .workspace = &Workspace});
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("hwy.attention.standard.prefill.paged"),
    Spec("hwy.attention.gqa.prefill.paged"),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
