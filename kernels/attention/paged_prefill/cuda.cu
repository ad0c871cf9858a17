// Attention of packed queries over a paged cache on CUDA, in tiles of rows of one sequence: of 64 in 16 bits and of
// long sequences over caches in float32, else of 8 in FP32; pages are read where they are.
//   query [total_q, h_q, d_qk]  f32|f16|bf16; caches [pages, page_size, h_kv, d]  dtype of query, in FP32 kCudaCaches;
//   last axes dense
//   output [total_q, h_q, d_v] dtype of query; lse [total_q, h_q] f32
// Invalid index data: as kernels/attention/paged/cuda.cu. Workspace: parts, where keys are split. Deterministic. Safe
// in graph captures. In 16 bits: weights of 16 bits (class bf16-p), kernels/attention/tile_kernel_cuda.h; else FP32
// throughout (class fp32), decode_kernel_cuda.h and float_tile_kernel_cuda.h.
#include "kernels/attention/family_cuda.h"
#include "kernels/attention/tile_memory.h"
#include "ops/attention/paged_prefill.h"

namespace lz {
namespace {
using namespace lz::ops::attention_paged_prefill;
using attention::CudaProblem;

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  CudaProblem p = {.type = DTypeOf(t[kQuery])};
  attention::SetPackedQueries(&p, t[kQuery], t[kQOIndptr], t[kOutput], t[kLse]);
  p.scale = float(s[kSmScale].value.f), p.softcap = float(s[kSoftcap].value.f);
  p.causal = s[kCausal].value.i != 0;
  p.window = attention::CudaWindowLeft(s[kWindowLeft].value.i);
  p.sinks = attention::CudaVectorOf(t[kSinks]), p.slopes = attention::CudaVectorOf(t[kAlibiSlopes]);
  attention::SetHeads(&p, args->axes[kHQ], args->axes[kHKV]);
  attention::SetPages(&p, t[kPagedKCache], t[kPagedVCache], t[kKScale], t[kVScale], t[kKVIndices]);
  attention::SetCsr(&p, t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen]);
  return p;
}

constexpr Constraint kAll[] = {
    {"paged_k_cache.dtype", Rel::kInMask, int64_t(attention::kCudaCaches)},
    {"paged_k_cache.alignment", Rel::kGe, 4},
    {"paged_v_cache.alignment", Rel::kGe, 4},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
    {"total_q", Rel::kLe, attention::kMostQueries},
};
constexpr auto kConstraints = attention::WithHeadDims(kAll);
constexpr auto kTileConstraints =
    Joined(attention::WithHeadDims<attention::kMostWideHeadDim>(kAll), {
                                                                           {"paged_k_cache.same_dtype", Rel::kEq, 1},
                                                                           {"query.alignment", Rel::kGe, 4},
                                                                           attention::kKeysFit,
                                                                           attention::kValuesFit,
                                                                           attention::kNotStrict,
                                                                       });
constexpr auto kGroupConstraints = attention::ForGroups(kTileConstraints);
constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::TileSpec<&MakeProblem>("cuda.attention.standard.prefill.paged", "attention.standard.prefill.paged",
                                      attention::kBest, kTileConstraints, kAcceptsAll, attention::kWideBeforeGathers),
    attention::TileSpec<&MakeProblem>("cuda.attention.gqa.prefill.paged", "attention.gqa.prefill.paged",
                                      attention::kBest, kTileConstraints, kAcceptsAll, attention::kWideBeforeGathers),
    attention::GroupSpec<&MakeProblem>("cuda.attention.standard.prefill.paged.wgmma",
                                       "attention.standard.prefill.paged", attention::kBestOfPacked, kGroupConstraints),
    attention::GroupSpec<&MakeProblem>("cuda.attention.gqa.prefill.paged.wgmma", "attention.gqa.prefill.paged",
                                       attention::kBestOfPacked, kGroupConstraints),
    attention::FewSpec<&MakeProblem>("cuda.attention.standard.prefill.paged.fp32", "attention.standard.prefill.paged",
                                     attention::kBeforeExpressions, kConstraints),
    attention::FewSpec<&MakeProblem>("cuda.attention.gqa.prefill.paged.fp32", "attention.gqa.prefill.paged",
                                     attention::kBeforeExpressions, kConstraints),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
