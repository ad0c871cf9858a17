// Prefill over packed sequences and decode over a paged cache on CUDA: the kernels of kernels/attention/ragged/cuda.cu
// and kernels/attention/paged/cuda.cu one after the other, in one call.
//   query_p [total_q, h_q, d_qk], key_p, value_p [total_kv, h_kv, d], query_d [b, h_q, d_qk]  f32|f16|bf16;
//   caches [pages, page_size, h_kv, d] f32|f16|bf16|FP8; last axes dense
//   output_p, output_d dtype of query_p; lse_p [total_q, h_q], lse_d [b, h_q] f32
// Workspace: parts, where keys are split. Deterministic. Safe in graph captures. Weights of 16 bits, or all in FP32.
#include "kernels/attention/family_cuda.h"
#include "kernels/attention/tile_memory.h"
#include "ops/attention/pod.h"

namespace lz {
namespace {
using namespace lz::ops::attention_pod;
using attention::CudaProblem;

void SetShared(CudaProblem* p, const lz_kernel_args* args) {
  const lz_scalar* s = args->scalars;
  attention::SetHeads(p, args->axes[kHQ], args->axes[kHKV]);
  p->scale = float(s[kSmScale].value.f), p->softcap = float(s[kSoftcap].value.f);
  p->window = attention::CudaWindowLeft(s[kWindowLeft].value.i);
  p->sinks = attention::CudaVectorOf(args->tensors[kSinks]);
}
CudaProblem Prefill(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  CudaProblem p = {.type = DTypeOf(t[kQueryP])};
  attention::SetPackedQueries(&p, t[kQueryP], t[kCuSeqlensQ], t[kOutputP], t[kLseP]);
  attention::SetPackedKeys(&p, t[kKeyP], t[kValueP], t[kCuSeqlensKV]);
  SetShared(&p, args);
  p.causal = args->scalars[kCausal].value.i != 0;
  return p;
}
CudaProblem Decode(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  CudaProblem p = {.type = DTypeOf(t[kQueryD])};
  p.b = int32_t(args->axes[kB]), p.s_q = 1, p.d_qk = int32_t(args->axes[kDQK]);
  p.q = attention::CudaRowsOf(t[kQueryD], 0, -1, 1), p.out = attention::CudaRowsOf(t[kOutputD], 0, -1, 1);
  attention::SetLse(&p, t[kLseD], 0, 1, -1);
  const lz_tensor none = {.ndim = -1};
  attention::SetPages(&p, t[kPagedKCache], t[kPagedVCache], none, none, t[kKVIndices]);
  attention::SetCsr(&p, t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen]);
  SetShared(&p, args);
  return p;
}

// kTiles: by products of matrices; else in FP32.
template <bool kTiles>
int32_t Run(const CudaProblem& p, const lz_kernel_args* args) {
  return kTiles && p.cache == p.type ? attention::RunTiles(p, args) : attention::RunFew(p, args);
}
template <bool kTiles>
uint64_t PartBytes(const CudaProblem& p) {
  const bool tiles = kTiles && p.cache == p.type;
  return attention::PartBytes(p, tiles ? attention::CutOfTiles(p) : attention::CutOfFew(p));
}
template <bool kTiles>
int32_t Launch(const lz_kernel_args* args) {  // the parts of one are merged before the other begins
  const int32_t code = Run<kTiles>(Prefill(args), args);
  return code != LZ_LAUNCH_DONE ? code : Run<kTiles>(Decode(args), args);
}
template <bool kTiles>
uint64_t Workspace(const lz_kernel_args* args) {
  const uint64_t a = PartBytes<kTiles>(Prefill(args)), b = PartBytes<kTiles>(Decode(args));
  return a > b ? a : b;
}

constexpr auto kConstraints = attention::WithHeadDims({
    {"paged_k_cache.dtype", Rel::kInMask, int64_t(attention::kCudaCaches)},
    {"query_p.alignment", Rel::kGe, 4},
    {"key_p.alignment", Rel::kGe, 4},
    {"value_p.alignment", Rel::kGe, 4},
    {"query_d.alignment", Rel::kGe, 4},
    {"paged_k_cache.alignment", Rel::kGe, 4},
    {"paged_v_cache.alignment", Rel::kGe, 4},
    {"total_kv", Rel::kLe, attention::kMostKeys},
    {"total_q", Rel::kLe, attention::kMostQueries},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
});
constexpr auto kTileConstraints =
    Joined(kConstraints, {attention::kKeysFit, attention::kValuesFit, attention::kNotStrict});
template <bool kTiles>
constexpr KernelSpec Spec(std::string_view id, std::string_view operation) {
  KernelSpec spec = kTiles ? attention::TileSpec<&Prefill>(id, operation, attention::kBest, kTileConstraints)
                           : attention::FewSpec<&Prefill>(id, operation, attention::kBeforeExpressions, kConstraints);
  spec.launch = &Launch<kTiles>;
  spec.workspace = &Workspace<kTiles>;
  return spec;
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec<true>("cuda.attention.standard.decode.pod", "attention.standard.decode.pod"),
    Spec<true>("cuda.attention.gqa.decode.pod", "attention.gqa.decode.pod"),
    Spec<false>("cuda.attention.standard.decode.pod.fp32", "attention.standard.decode.pod"),
    Spec<false>("cuda.attention.gqa.decode.pod.fp32", "attention.gqa.decode.pod"),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
