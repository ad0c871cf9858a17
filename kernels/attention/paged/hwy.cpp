// Decode attention over paged caches on the CPU, SIMD: CSR page lists and block tables. This file converts a call to
// the Problem that kernels/attention/loop.h computes.
//   query [b, (1,) h_q, d_qk]  f32|f16|bf16; caches [pages, page_size, h_kv, d] kCaches, last axis dense
// Invalid index data: fails with 1 before anything is written. Workspace and determinism: as in the dense kernels.
#include "kernels/attention/pages.h"
#include "kernels/spec.h"
#include "ops/attention/block_table.h"
#include "ops/attention/paged.h"

namespace {
using namespace lz;
using attention::Paging;
using attention::Problem;

// The part that both forms share; `lse` is [b, h_q].
Problem Common(const lz_tensor& query, const lz_tensor& sinks, const lz_tensor& slopes, const lz_tensor& out,
               const lz_tensor& lse) {
  Problem p = {.dtype = DTypeOf(query)};
  const int head = query.ndim - 2;  // the query of a block table has an axis of one position before it
  p.b = query.shape[0];
  p.s_q = 1;
  p.h_q = query.shape[head];
  p.d_qk = query.shape[head + 1];
  p.q = attention::RowsOf(query, 0, -1, head);
  p.out = attention::RowsOf(out, 0, -1, head);
  p.sinks = attention::Optional(sinks);
  p.slopes = attention::Optional(slopes);
  if (Given(lse)) {
    p.lse = Data<float>(lse);
    p.lse_b = lse.strides[0], p.lse_h = lse.strides[1];
  }
  return p;
}

Problem CsrProblem(const lz_kernel_args* args) {
  using namespace lz::ops::attention_paged;
  const lz_tensor* t = args->tensors;
  Problem p = Common(t[kQ], t[kSinks], t[kAlibiSlopes], t[kOutput], t[kLse]);
  p.scale = float(args->scalars[kSmScale].value.f);
  p.softcap = float(args->scalars[kSoftcap].value.f);
  const int64_t left = args->scalars[kWindowLeft].value.i;
  p.window = left < 0 ? -1 : std::min(left, attention::kMaxWindow) + 1;  // includes the query's own position
  return attention::OverCsrPages(p, {t[kPagedKCache], t[kPagedVCache], t[kKScale], t[kVScale]},
                                 {t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen]});
}

Problem TableProblem(const lz_kernel_args* args) {
  using namespace lz::ops::attention_block_table;
  const lz_tensor *t = args->tensors, &table = t[kBlockTables];
  Problem p = Common(t[kQuery], t[kSinks], t[kAlibiSlopes], t[kOutput], t[kLse]);
  p.scale = float(args->scalars[kScale].value.f);
  p.softcap = float(args->scalars[kSoftcap].value.f);
  p.window = args->scalars[kWindow].given ? std::min(args->scalars[kWindow].value.i, attention::kMaxWindow) : -1;
  p = attention::OverPages(p, {t[kKeyCache], t[kValueCache], t[kKScale], t[kVScale]}, table);
  p.paging = Paging::kBlockTable;
  p.table_stride = table.strides[0];
  p.pages_stride = table.strides[1];
  p.lengths = Data<const int32_t>(t[kContextLens]);
  p.lengths_stride = t[kContextLens].strides[0];
  p.num_indices = table.shape[1];
  p.s_kv = table.shape[1] * p.page_size;
  return p;
}

using MakeProblem = Problem (*)(const lz_kernel_args*);

template <MakeProblem kMake>
int32_t Launch(const lz_kernel_args* args) {
  const Problem p = kMake(args);
  if (!ValidPaging(p)) return 1;
  return attention::Run(attention::WithoutEmptyPages(p), args);
}
template <MakeProblem kMake>
uint64_t Workspace(const lz_kernel_args* args) {
  return attention::WorkspaceOf(attention::WithoutEmptyPages(kMake(args)), args);
}

constexpr auto kConstraints = [](std::string_view field) {
  return std::to_array<Constraint>({{field, Rel::kInMask, attention::kCaches}});
};
constexpr auto kCsrConstraints = kConstraints("paged_k_cache.dtype");
constexpr auto kTableConstraints = kConstraints("key_cache.dtype");
constexpr std::array<std::string_view, 8> kCsrAccepts = {"sm_scale",     "window_left", "softcap", "sinks",
                                                         "alibi_slopes", "k_scale",     "v_scale", "return_lse"};
constexpr std::array<std::string_view, 8> kTableAccepts = {"scale",        "window",  "softcap", "sinks",
                                                           "alibi_slopes", "k_scale", "v_scale", "return_lse"};

constexpr KernelSpec CsrSpec(std::string_view id) {
  return CpuSpec(id, &Launch<&CsrProblem>,
                 {.constraints = kCsrConstraints,
                  .accepts = kCsrAccepts,
                  .numerics = "fp32",
                  .workspace = &Workspace<&CsrProblem>});
}
constexpr KernelSpec TableSpec(std::string_view id) {
  return CpuSpec(id, &Launch<&TableProblem>,
                 {.constraints = kTableConstraints,
                  .accepts = kTableAccepts,
                  .numerics = "fp32",
                  .workspace = &Workspace<&TableProblem>});
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    CsrSpec("hwy.attention.standard.decode.paged"),
    CsrSpec("hwy.attention.gqa.decode.paged"),
    TableSpec("hwy.attention.standard.decode.block_table"),
    TableSpec("hwy.attention.gqa.decode.block_table"),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
