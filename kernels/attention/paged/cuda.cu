// Decode attention over paged caches on CUDA: CSR page lists and block tables, read where they are.
//   query [b, (1,) h_q, d_qk]  f32|f16|bf16; caches [pages, page_size, h_kv, d] kCudaCaches, last axis dense
//   output like query with d_v; lse [b, h_q] f32
// Invalid index data: keys in pages that do not exist are left out, lengths and offsets are limited to the list.
// Workspace, determinism, captures, numerics: as kernels/attention/dense/cuda.cu.
#include "kernels/attention/family_cuda.h"
#include "kernels/attention/tile_memory.h"
#include "ops/attention/block_table.h"
#include "ops/attention/paged.h"

namespace {
using namespace lz;
using attention::CudaProblem;

// What both forms share; `lse` is [b, h_q].
CudaProblem Common(const lz_tensor& query, const lz_tensor& sinks, const lz_tensor& slopes, const lz_tensor& out,
                   const lz_tensor& lse) {
  CudaProblem p = {.type = DTypeOf(query)};
  const int head = query.ndim - 2;  // a block-table query has an axis of one position before it
  p.b = int32_t(query.shape[0]), p.s_q = 1, p.d_qk = int32_t(query.shape[head + 1]);
  p.q = attention::CudaRowsOf(query, 0, -1, head), p.out = attention::CudaRowsOf(out, 0, -1, head);
  p.sinks = attention::CudaVectorOf(sinks), p.slopes = attention::CudaVectorOf(slopes);
  attention::SetLse(&p, lse, 0, 1, -1);
  return p;
}

CudaProblem CsrProblem(const lz_kernel_args* args) {
  using namespace lz::ops::attention_paged;
  const lz_tensor* t = args->tensors;
  CudaProblem p = Common(t[kQ], t[kSinks], t[kAlibiSlopes], t[kOutput], t[kLse]);
  p.scale = float(args->scalars[kSmScale].value.f), p.softcap = float(args->scalars[kSoftcap].value.f);
  p.window = attention::CudaWindowLeft(args->scalars[kWindowLeft].value.i);
  attention::SetHeads(&p, args->axes[kHQ], args->axes[kHKV]);
  attention::SetPages(&p, t[kPagedKCache], t[kPagedVCache], t[kKScale], t[kVScale], t[kKVIndices]);
  attention::SetCsr(&p, t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen]);
  return p;
}

CudaProblem TableProblem(const lz_kernel_args* args) {
  using namespace lz::ops::attention_block_table;
  const lz_tensor *t = args->tensors, &table = t[kBlockTables], &lengths = t[kContextLens];
  CudaProblem p = Common(t[kQuery], t[kSinks], t[kAlibiSlopes], t[kOutput], t[kLse]);
  p.scale = float(args->scalars[kScale].value.f), p.softcap = float(args->scalars[kSoftcap].value.f);
  p.window = attention::CudaWindow(args->scalars[kWindow].given ? args->scalars[kWindow].value.i : -1);
  attention::SetHeads(&p, args->axes[kHQ], args->axes[kHKV]);
  attention::SetPages(&p, t[kKeyCache], t[kValueCache], t[kKScale], t[kVScale], table);
  p.paging = attention::CudaPaging::kTable;
  p.table_stride = table.strides[0], p.pages_stride = table.strides[1], p.num_indices = table.shape[1];
  p.lengths = Data<void>(lengths), p.wide_lengths = DTypeOf(lengths) == DType::kI64;
  p.lengths_stride = lengths.strides[0];
  p.s_kv = table.shape[1] * p.page_size;
  return p;
}

constexpr auto kCsr = attention::WithHeadDims({
    {"paged_k_cache.dtype", Rel::kInMask, int64_t(attention::kCudaCaches)},
    {"paged_k_cache.alignment", Rel::kGe, 4},
    {"paged_v_cache.alignment", Rel::kGe, 4},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
});
constexpr auto kTable = attention::WithHeadDims({
    {"key_cache.dtype", Rel::kInMask, int64_t(attention::kCudaCaches)},
    {"key_cache.alignment", Rel::kGe, 4},
    {"value_cache.alignment", Rel::kGe, 4},
    {"max_blocks * block_size", Rel::kLe, attention::kMostKeys},
});
// In 16 bits.
constexpr auto kCsrTiles = attention::WithHeadDims<attention::kMostWideHeadDim>({
    {"paged_k_cache.same_dtype", Rel::kEq, 1},
    {"q.alignment", Rel::kGe, 4},
    {"paged_k_cache.alignment", Rel::kGe, 4},
    {"paged_v_cache.alignment", Rel::kGe, 4},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
    attention::kKeysFit,
    attention::kValuesFit,
});
constexpr auto kTableTiles = attention::WithHeadDims<attention::kMostWideHeadDim>({
    {"key_cache.same_dtype", Rel::kEq, 1},
    {"query.alignment", Rel::kGe, 4},
    {"key_cache.alignment", Rel::kGe, 4},
    {"value_cache.alignment", Rel::kGe, 4},
    {"max_blocks * block_size", Rel::kLe, attention::kMostKeys},
    attention::kKeysFit,
    attention::kValuesFit,
});
constexpr std::array<std::string_view, 8> kCsrAccepts = {"sm_scale",     "window_left", "softcap", "sinks",
                                                         "alibi_slopes", "k_scale",     "v_scale", "return_lse"};
constexpr std::array<std::string_view, 8> kTableAccepts = {"scale",        "window",  "softcap", "sinks",
                                                           "alibi_slopes", "k_scale", "v_scale", "return_lse"};

constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::FewSpec<&CsrProblem>("cuda.attention.standard.decode.paged", "attention.standard.decode.paged",
                                    attention::kBeforeGathers, kCsr, kCsrAccepts),
    attention::FewSpec<&CsrProblem>("cuda.attention.gqa.decode.paged", "attention.gqa.decode.paged",
                                    attention::kBeforeGathers, kCsr, kCsrAccepts),
    attention::TileSpec<&CsrProblem>("cuda.attention.standard.decode.paged.mma", "attention.standard.decode.paged",
                                     attention::kBest, kCsrTiles, kCsrAccepts, attention::kWideBeforeGathers),
    attention::TileSpec<&CsrProblem>("cuda.attention.gqa.decode.paged.mma", "attention.gqa.decode.paged",
                                     attention::kBest, kCsrTiles, kCsrAccepts, attention::kWideBeforeGathers),
    attention::FewSpec<&TableProblem>("cuda.attention.standard.decode.block_table",
                                      "attention.standard.decode.block_table", attention::kBeforeGathers, kTable,
                                      kTableAccepts),
    attention::FewSpec<&TableProblem>("cuda.attention.gqa.decode.block_table", "attention.gqa.decode.block_table",
                                      attention::kBeforeGathers, kTable, kTableAccepts),
    attention::TileSpec<&TableProblem>("cuda.attention.standard.decode.block_table.mma",
                                       "attention.standard.decode.block_table", attention::kBest, kTableTiles,
                                       kTableAccepts, attention::kWideBeforeGathers),
    attention::TileSpec<&TableProblem>("cuda.attention.gqa.decode.block_table.mma", "attention.gqa.decode.block_table",
                                       attention::kBest, kTableTiles, kTableAccepts, attention::kWideBeforeGathers),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
