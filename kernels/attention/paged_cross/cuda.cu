// Cross attention over a paged cache on CUDA; pages are read where they are, once for each 8 rows of a KV head, or 64
// in 16 bits and of many rows in float32.
//   query [b, s_q, h_q, d_qk]  f32|f16|bf16; caches [pages, page_size, h_kv, d] kCudaCaches, last axis dense
//   output [b, s_q, h_q, d_v] dtype of query; lse [b, h_q, s_q] f32
// Invalid index data, workspace, determinism, captures, numerics: as kernels/attention/paged/cuda.cu.
#include "kernels/attention/family_cuda.h"
#include "kernels/attention/tile_memory.h"
#include "ops/attention/paged_cross.h"

namespace lz {
namespace {
using namespace lz::ops::attention_paged_cross;
using attention::CudaProblem;

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  CudaProblem p = {.type = DTypeOf(t[kQuery])};
  p.b = int32_t(args->axes[kB]), p.s_q = int32_t(args->axes[kSQ]), p.d_qk = int32_t(args->axes[kDQK]);
  p.q = attention::CudaRowsOf(t[kQuery], 0, 1, 2), p.out = attention::CudaRowsOf(t[kOutput], 0, 1, 2);
  p.scale = float(args->scalars[kSmScale].value.f), p.softcap = float(args->scalars[kSoftcap].value.f);
  p.sinks = attention::CudaVectorOf(t[kSinks]);
  attention::SetLse(&p, t[kLse], 0, 1, 2);
  attention::SetHeads(&p, args->axes[kHQ], args->axes[kHKV]);
  attention::SetPages(&p, t[kPagedKCache], t[kPagedVCache], t[kKScale], t[kVScale], t[kKVIndices]);
  attention::SetCsr(&p, t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen]);
  return p;
}

constexpr auto kConstraints = attention::WithHeadDims({
    {"paged_k_cache.dtype", Rel::kInMask, int64_t(attention::kCudaCaches)},
    {"paged_k_cache.alignment", Rel::kGe, 4},
    {"paged_v_cache.alignment", Rel::kGe, 4},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
    {"s_q", Rel::kLe, attention::kMostQueries},
});
constexpr auto kTileConstraints = attention::WithHeadDims<attention::kMostWideHeadDim>({
    {"paged_k_cache.same_dtype", Rel::kEq, 1},
    {"query.alignment", Rel::kGe, 4},
    {"paged_k_cache.alignment", Rel::kGe, 4},
    {"paged_v_cache.alignment", Rel::kGe, 4},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
    {"s_q", Rel::kLe, attention::kMostQueries},
    attention::kKeysFit,
    attention::kValuesFit,
});
constexpr std::array<std::string_view, 6> kAccepts = {"sm_scale", "softcap", "sinks",
                                                      "k_scale",  "v_scale", "return_lse"};
constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::FewSpec<&MakeProblem>("cuda.attention.cross.decode.paged", "attention.cross.decode.paged",
                                     attention::kAfterFlash, kConstraints, kAccepts),
    attention::FewSpec<&MakeProblem>("cuda.attention.cross.few.paged", "attention.cross.prefill.paged",
                                     attention::kAfterFlash, kConstraints, kAccepts),
    attention::TileSpec<&MakeProblem>("cuda.attention.cross.decode.paged.mma", "attention.cross.decode.paged",
                                      attention::kBest, kTileConstraints, kAccepts, attention::kWideBeforeGathers),
    attention::TileSpec<&MakeProblem>("cuda.attention.cross.prefill.paged", "attention.cross.prefill.paged",
                                      attention::kBest, kTileConstraints, kAccepts, attention::kWideBeforeGathers),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
