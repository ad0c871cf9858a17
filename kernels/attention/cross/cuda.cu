// Cross attention on CUDA: up to 8 queries, and tiles of rows in 16 bits or FP32.
//   query [b, s_q, h_q, d_qk], key [b, s_kv, h_kv, d_qk], value [b, s_kv, h_kv, d_v]  f32|f16|bf16, last axis dense
//   output [b, s_q, h_q, d_v] dtype of query; lse [b, h_q, s_q] f32
// Workspace, determinism, captures, numerics: as kernels/attention/dense/cuda.cu.
#include "kernels/attention/family_cuda.h"
#include "kernels/attention/tile_memory.h"
#include "ops/attention/cross.h"

namespace lz {
namespace {
using namespace lz::ops::attention_cross;
using attention::CudaProblem;

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  CudaProblem p = attention::DenseCudaProblem(t[kQuery], t[kKey], t[kValue]);
  p.out = attention::CudaRowsOf(t[kOutput], 0, 1, 2);
  p.scale = float(args->scalars[kScale].value.f), p.softcap = float(args->scalars[kSoftcap].value.f);
  p.sinks = attention::CudaVectorOf(t[kSinks]);
  attention::SetMask(&p, t[kAttnMask]);
  attention::SetLse(&p, t[kLse], 0, 1, 2);
  return p;
}

constexpr auto kFloatConstraints = attention::WithHeadDims({
    {"key.alignment", Rel::kGe, 4},
    {"value.alignment", Rel::kGe, 4},
    {"s_kv", Rel::kLe, attention::kMostKeys},
    {"s_q", Rel::kLe, attention::kMostQueries},
});
constexpr auto kConstraints = Joined(kFloatConstraints, {{"s_q", Rel::kLe, attention::kFewQueries}});
constexpr auto kTileConstraints = Joined(attention::kDenseTiles, {
                                                                     {"s_q", Rel::kLe, attention::kMostQueries},
                                                                     attention::kKeysFit,
                                                                     attention::kValuesFit,
                                                                 });
// A mask hides values of some rows of a tile.
constexpr auto kMaskConstraints = Joined(kTileConstraints, {
                                                               {"attn_mask.given", Rel::kEq, 1},
                                                               attention::kNotStrict,
                                                           });
constexpr std::array<std::string_view, 5> kAccepts = {"scale", "attn_mask", "softcap", "sinks", "return_lse"};
constexpr std::array<std::string_view, 4> kTileAccepts = {"scale", "softcap", "sinks", "return_lse"};  // no mask
constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::FewSpec<&MakeProblem>("cuda.attention.cross.decode", "attention.cross.decode",
                                     attention::kBeforeExpressions, kConstraints, kAccepts),
    attention::FewSpec<&MakeProblem>("cuda.attention.cross.few", "attention.cross.prefill",
                                     attention::kBeforeExpressions, kConstraints, kAccepts),
    attention::TileSpec<&MakeProblem>("cuda.attention.cross.decode.mma", "attention.cross.decode",
                                      attention::kAfterTorchsChoice, kTileConstraints, kTileAccepts,
                                      attention::kWidePreferences),
    attention::TileSpec<&MakeProblem>("cuda.attention.cross.prefill", "attention.cross.prefill", attention::kAfterFlash,
                                      kTileConstraints, kTileAccepts, attention::kWidePreferences),
    attention::TileSpec<&MakeProblem>("cuda.attention.cross.prefill.mask", "attention.cross.prefill",
                                      attention::kAfterFlash, kMaskConstraints, kAccepts, attention::kWidePreferences),
    attention::FloatTileSpec<&MakeProblem>("cuda.attention.cross.prefill.fp32", "attention.cross.prefill",
                                           kFloatConstraints, kAccepts),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
