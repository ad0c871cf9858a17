// Attention over packed sequences on CUDA, in tiles of rows of one sequence: of 64 in 16 bits and of long sequences in
// float32, else of 8 in FP32.
//   query [total_q, h_q, d_qk], key, value [total_kv, h_kv, d]  f32|f16|bf16, last axis dense
//   output [total_q, h_q, d_v] dtype of query; lse [total_q, h_q] f32
// Offsets are limited to the tensors, whatever they are. Workspace, determinism, captures, numerics: as
// kernels/attention/paged_prefill/cuda.cu.
#include "kernels/attention/family_cuda.h"
#include "kernels/attention/tile_memory.h"
#include "ops/attention/ragged.h"

namespace lz {
namespace {
using namespace lz::ops::attention_ragged;
using attention::CudaProblem;

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  CudaProblem p = {.type = DTypeOf(t[kQuery])};
  attention::SetPackedQueries(&p, t[kQuery], t[kCuSeqlensQ], t[kOutput], t[kLse]);
  attention::SetPackedKeys(&p, t[kKey], t[kValue], t[kCuSeqlensKV]);
  attention::SetHeads(&p, args->axes[kHQ], args->axes[kHKV]);
  p.scale = float(s[kScale].value.f), p.softcap = float(s[kSoftcap].value.f);
  p.causal = s[kCausal].value.i != 0;
  p.window = attention::CudaWindow(s[kWindow].given ? s[kWindow].value.i : -1);
  p.sinks = attention::CudaVectorOf(t[kSinks]), p.slopes = attention::CudaVectorOf(t[kAlibiSlopes]);
  return p;
}

constexpr Constraint kAll[] = {
    {"key.alignment", Rel::kGe, 4},
    {"value.alignment", Rel::kGe, 4},
    {"total_kv", Rel::kLe, attention::kMostKeys},
    {"total_q", Rel::kLe, attention::kMostQueries},
};
constexpr auto kConstraints = attention::WithHeadDims(kAll);
constexpr auto kTileConstraints =
    Joined(attention::WithHeadDims<attention::kMostWideHeadDim>(kAll),
           {{"query.alignment", Rel::kGe, 4}, attention::kKeysFit, attention::kValuesFit, attention::kNotStrict});
constexpr auto kGroupConstraints = attention::ForGroups(kTileConstraints);
constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::TileSpec<&MakeProblem>("cuda.attention.standard.prefill.ragged", "attention.standard.prefill.ragged",
                                      attention::kBest, kTileConstraints, kAcceptsAll, attention::kWidePreferences),
    attention::TileSpec<&MakeProblem>("cuda.attention.gqa.prefill.ragged", "attention.gqa.prefill.ragged",
                                      attention::kBest, kTileConstraints, kAcceptsAll, attention::kWidePreferences),
    attention::GroupSpec<&MakeProblem>("cuda.attention.standard.prefill.ragged.wgmma",
                                       "attention.standard.prefill.ragged", attention::kBestOfPacked,
                                       kGroupConstraints),
    attention::GroupSpec<&MakeProblem>("cuda.attention.gqa.prefill.ragged.wgmma", "attention.gqa.prefill.ragged",
                                       attention::kBestOfPacked, kGroupConstraints),
    attention::FewSpec<&MakeProblem>("cuda.attention.standard.prefill.ragged.fp32", "attention.standard.prefill.ragged",
                                     attention::kBeforeExpressions, kConstraints),
    attention::FewSpec<&MakeProblem>("cuda.attention.gqa.prefill.ragged.fp32", "attention.gqa.prefill.ragged",
                                     attention::kBeforeExpressions, kConstraints),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
