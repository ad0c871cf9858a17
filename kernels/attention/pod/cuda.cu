// Prefill over packed sequences and decode over a paged cache on CUDA: the kernels of kernels/attention/ragged/cuda.cu
// and kernels/attention/paged/cuda.cu one after the other, in one call.
//   query_p [total_q, h_q, d_qk], key_p, value_p [total_kv, h_kv, d], query_d [b, h_q, d_qk]  f16|bf16;
//   caches [pages, page_size, h_kv, d] f32|f16|bf16|FP8; last axes dense
//   output_p, output_d dtype of query_p; lse_p [total_q, h_q], lse_d [b, h_q] f32
// Workspace: parts, where keys are split. Deterministic. Safe in graph captures. Prefill: weights of 16 bits.
#include "kernels/attention/family_cuda.h"
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

int32_t Launch(const lz_kernel_args* args) {  // the parts of one are merged before the other begins
  const int32_t code = attention::RunTiles(Prefill(args), args);
  if (code != LZ_LAUNCH_DONE) return code;
  const CudaProblem decode = Decode(args);
  return decode.cache == decode.type ? attention::RunTiles(decode, args) : attention::RunFew(decode, args);
}
uint64_t Workspace(const lz_kernel_args* args) {
  const CudaProblem prefill = Prefill(args), decode = Decode(args);
  const uint64_t a = attention::PartBytes(prefill, attention::CutOfTiles(prefill));
  const uint64_t b = attention::PartBytes(
      decode, decode.cache == decode.type ? attention::CutOfTiles(decode) : attention::CutOfFew(decode));
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
    attention::kNotStrict,
});
constexpr KernelSpec Spec(std::string_view id, std::string_view operation) {
  KernelSpec spec = attention::TileSpec<&Prefill>(id, operation, attention::kBest, kConstraints);
  spec.launch = &Launch;
  spec.workspace = &Workspace;
  return spec;
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("cuda.attention.standard.decode.pod", "attention.standard.decode.pod"),
    Spec("cuda.attention.gqa.decode.pod", "attention.gqa.decode.pod"),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
