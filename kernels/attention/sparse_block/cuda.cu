// Attention of blocks of queries to listed blocks of keys on CUDA: blocks of keys are read where they are, as pages.
//   q [m, h_q, d_qk], k [n, h_kv, d_qk], v [n, h_kv, d_v]  last axis dense     indptr [m / R + 1], indices [nnz]
//   i32|i64 output [m, h_q, d_v] dtype of q; lse [m, h_q] f32
// Invalid index data: as kernels/attention/paged/cuda.cu. Workspace: parts, where keys are split. Deterministic. Safe
// in graph captures. Up to 8 queries a block, and float32: FP32 throughout (class fp32), decode_kernel_cuda.h and
// float_tile_kernel_cuda.h; 16 bits: weights of 16 bits (class bf16-p), slim_kernel_cuda.h, tile_kernel_cuda.h.
#include "kernels/attention/family_cuda.h"
#include "kernels/attention/tile_memory.h"
#include "ops/attention/sparse_block.h"

namespace lz {
namespace {
using namespace lz::ops::attention_sparse_block;
using attention::CudaProblem;

// [rows, heads, d] as [blocks, rows of a block, heads, d].
attention::CudaRows BlocksOf(const lz_tensor& t, int64_t rows) {
  attention::CudaRows of = attention::CudaRowsOf(t, 0, 0, 1);
  of.outer *= rows;
  return of;
}

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &indptr = t[kIndptr], &indices = t[kBlockIndices], &lse = t[kLse];
  const int64_t r = args->scalars[kR].value.i, c = args->scalars[kC].value.i;
  CudaProblem p = {.type = DTypeOf(t[kQ]), .cache = DTypeOf(t[kQ])};
  p.q = BlocksOf(t[kQ], r), p.out = BlocksOf(t[kOutput], r);
  p.k = BlocksOf(t[kK], c), p.v = BlocksOf(t[kV], c);
  p.b = int32_t(args->axes[kM] / r), p.s_q = int32_t(r);
  p.d_qk = int32_t(args->axes[kDQK]), p.d_v = int32_t(args->axes[kDV]);
  attention::SetHeads(&p, args->axes[kHQ], args->axes[kHKV]);
  p.scale = float(args->scalars[kSmScale].value.f);
  attention::SetPageNumbers(&p, args->axes[kN] / c, int32_t(c), indices);
  attention::SetFullPages(&p, indptr, indices);
  if (Given(lse)) {
    p.lse = Data<float>(lse);
    p.lse_b = r * lse.strides[0], p.lse_s = lse.strides[0], p.lse_h = lse.strides[1];
  }
  return p;
}

constexpr Constraint kAll[] = {
    {"k.alignment", Rel::kGe, 4},
    {"v.alignment", Rel::kGe, 4},
    {"m", Rel::kLe, attention::kMostQueries},
    {"n", Rel::kLe, attention::kMostKeys},
    {"nnz * C", Rel::kLe, attention::kMostKeys},
    {"indptr.dtype", Rel::kInMask, kIndices},
    {"indices.dtype", Rel::kInMask, kIndices},
};
constexpr auto kConstraints = attention::WithHeadDims(kAll);
constexpr auto kFewConstraints = Joined(kConstraints, {{"R", Rel::kLe, attention::kFewQueries}});
// All rows of a tile see the same keys, so no hidden value is loaded.
constexpr auto kTileConstraints = Joined(attention::WithHeadDims<attention::kMostWideHeadDim>(kAll),
                                         {{"q.alignment", Rel::kGe, 4}, attention::kKeysFit, attention::kValuesFit});
constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::FewSpec<&MakeProblem>("cuda.attention.sparse.block.few", "attention.sparse.block",
                                     attention::kBeforeGathers, kFewConstraints),
    attention::TileSpec<&MakeProblem>("cuda.attention.sparse.block", "attention.sparse.block", attention::kBest,
                                      kTileConstraints, kAcceptsAll, attention::kWideBeforeGathers),
    attention::FloatTileSpec<&MakeProblem>("cuda.attention.sparse.block.fp32", "attention.sparse.block", kConstraints),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
