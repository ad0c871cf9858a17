// Decode attention over a shared prefix and paged suffixes on CUDA: one walk over the keys of both.
//   query [b, h_q, d_qk]  f32|f16|bf16; shared_k, shared_v [n_shared, h_kv, d], caches [pages, page_size, h_kv, d]
//   kCudaCaches, last axis dense; output [b, h_q, d_v] dtype of query; lse [b, h_q] f32
// Invalid index data, workspace, determinism, captures, numerics: as kernels/attention/paged/cuda.cu.
#include "kernels/attention/family_cuda.h"
#include "kernels/attention/tile_memory.h"
#include "ops/attention/cascade.h"

namespace lz {
namespace {
using namespace lz::ops::attention_cascade;
using attention::CudaProblem;

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  CudaProblem p = {.type = DTypeOf(t[kQuery])};
  p.b = int32_t(args->axes[kB]), p.s_q = 1, p.d_qk = int32_t(args->axes[kDQK]);
  p.q = attention::CudaRowsOf(t[kQuery], 0, -1, 1), p.out = attention::CudaRowsOf(t[kOutput], 0, -1, 1);
  p.scale = float(args->scalars[kSmScale].value.f), p.softcap = float(args->scalars[kSoftcap].value.f);
  p.window = attention::CudaWindowLeft(args->scalars[kWindowLeft].value.i);
  p.sinks = attention::CudaVectorOf(t[kSinks]), p.slopes = attention::CudaVectorOf(t[kAlibiSlopes]);
  attention::SetLse(&p, t[kLse], 0, 1, -1);
  attention::SetHeads(&p, args->axes[kHQ], args->axes[kHKV]);
  attention::SetPages(&p, t[kPagedKCache], t[kPagedVCache], t[kKScale], t[kVScale], t[kKVIndices]);
  attention::SetCsr(&p, t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen]);
  p.shared = int32_t(args->axes[kNShared]);
  p.shared_k = attention::CudaRowsOf(t[kSharedK], -1, 0, 1), p.shared_v = attention::CudaRowsOf(t[kSharedV], -1, 0, 1);
  return p;
}

constexpr auto kConstraints = attention::WithHeadDims({
    {"paged_k_cache.dtype", Rel::kInMask, int64_t(attention::kCudaCaches)},
    {"paged_k_cache.alignment", Rel::kGe, 4},
    {"paged_v_cache.alignment", Rel::kGe, 4},
    {"shared_k.alignment", Rel::kGe, 4},
    {"shared_v.alignment", Rel::kGe, 4},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
    {"n_shared", Rel::kLe, attention::kMostKeys},
});
constexpr auto kTileConstraints = attention::WithHeadDims({
    {"paged_k_cache.same_dtype", Rel::kEq, 1},
    {"query.alignment", Rel::kGe, 4},
    {"paged_k_cache.alignment", Rel::kGe, 4},
    {"paged_v_cache.alignment", Rel::kGe, 4},
    {"shared_k.alignment", Rel::kGe, 4},
    {"shared_v.alignment", Rel::kGe, 4},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
    {"n_shared", Rel::kLe, attention::kMostKeys},
    attention::kKeysFit,
    attention::kValuesFit,
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::FewSpec<&MakeProblem>("cuda.attention.standard.decode.cascade", "attention.standard.decode.cascade",
                                     attention::kBeforeGathers, kConstraints),
    attention::FewSpec<&MakeProblem>("cuda.attention.gqa.decode.cascade", "attention.gqa.decode.cascade",
                                     attention::kBeforeGathers, kConstraints),
    attention::TileSpec<&MakeProblem>("cuda.attention.standard.decode.cascade.mma", "attention.standard.decode.cascade",
                                      attention::kBest, kTileConstraints),
    attention::TileSpec<&MakeProblem>("cuda.attention.gqa.decode.cascade.mma", "attention.gqa.decode.cascade",
                                      attention::kBest, kTileConstraints),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
