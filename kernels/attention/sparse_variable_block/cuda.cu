// Attention through a map of blocks of different sizes on CUDA: a tile has rows of one block of queries, and walks
// along the map's row for the blocks of keys that it sees.
//   q [m, h_q, d_qk], k [n, h_kv, d_qk], v [n, h_kv, d_v]  f32|f16|bf16, last axis dense
//   block_mask [h_kv, mb, nb] bool
//   row_sizes [h_kv, mb], col_sizes [h_kv, nb]  i32|i64     output [m, h_q, d_v] dtype of q; lse [m, h_q] f32
// On invalid sizes nothing outside the tensors is touched; queries of no block have an undefined result. Workspace:
// parts, where keys are split. Deterministic. Safe in graph captures. Weights of 16 bits (class bf16-p), or FP32
// throughout (class fp32). kernels/attention/tile_kernel_cuda.h, float_tile_kernel_cuda.h and map_cuda.h compute it.
#include "kernels/attention/family_cuda.h"
#include "kernels/attention/tile_memory.h"
#include "ops/attention/sparse_variable_block.h"

namespace lz {
namespace {
using namespace lz::ops::attention_sparse_variable_block;
using attention::CudaProblem;

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &seen = t[kBlockMask], &rows = t[kRowSizes], &columns = t[kColSizes];
  CudaProblem p = {.type = DTypeOf(t[kQ]), .cache = DTypeOf(t[kQ])};
  p.q = attention::CudaRowsOf(t[kQ], -1, 0, 1), p.out = attention::CudaRowsOf(t[kOutput], -1, 0, 1);
  p.k = attention::CudaRowsOf(t[kK], -1, 0, 1), p.v = attention::CudaRowsOf(t[kV], -1, 0, 1);
  p.b = int32_t(args->axes[kMB]), p.s_q = 1, p.total_q = args->axes[kM], p.s_kv = args->axes[kN];
  p.d_qk = int32_t(args->axes[kDQK]), p.d_v = int32_t(args->axes[kDV]);
  attention::SetHeads(&p, args->axes[kHQ], args->axes[kHKV]);
  p.scale = float(args->scalars[kSmScale].value.f);
  p.map = {.given = true,
           .seen = Data<bool>(seen),
           .seen_strides = {seen.strides[0], seen.strides[1], seen.strides[2]},
           .rows = Data<void>(rows),
           .columns = Data<void>(columns),
           .wide_rows = DTypeOf(rows) == DType::kI64,
           .wide_columns = DTypeOf(columns) == DType::kI64,
           .row_strides = {rows.strides[0], rows.strides[1]},
           .column_strides = {columns.strides[0], columns.strides[1]},
           .num_columns = int32_t(args->axes[kNB])};
  if (Given(t[kLse])) {
    p.lse = Data<float>(t[kLse]);
    p.lse_s = t[kLse].strides[0], p.lse_h = t[kLse].strides[1];
  }
  return p;
}

constexpr auto kConstraints = attention::WithHeadDims({
    {"q.alignment", Rel::kGe, 4},
    {"k.alignment", Rel::kGe, 4},
    {"v.alignment", Rel::kGe, 4},
    {"m", Rel::kLe, attention::kMostQueries},
    {"n", Rel::kGe, 1},
    {"n", Rel::kLe, attention::kMostKeys},
    {"mb", Rel::kLe, attention::kMostQueries},
    {"nb", Rel::kLe, attention::kMostKeys},
    {"row_sizes.dtype", Rel::kInMask, kIndices},
    {"col_sizes.dtype", Rel::kInMask, kIndices},
    attention::kKeysFit,
    attention::kValuesFit,
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::TileSpec<&MakeProblem>("cuda.attention.sparse.variable_block", "attention.sparse.variable_block",
                                      attention::kBest, kConstraints),
    attention::FloatTileSpec<&MakeProblem>("cuda.attention.sparse.variable_block.fp32",
                                           "attention.sparse.variable_block", kConstraints),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
