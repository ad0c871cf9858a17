// Attention on CUDA over dense keys and values: decode, prefill of up to 8 queries, and prefill in 16 bits or FP32.
//   query [b, s_q, h_q, d_qk], key [b, s_kv, h_kv, d_qk], value [b, s_kv, h_kv, d_v]  f32|f16|bf16, last axis dense
//   output [b, s_q, h_q, d_v] dtype of query; lse [b, h_q, s_q] f32
// Workspace: parts, where keys are split. Deterministic. Safe in graph captures. Few queries: FP32 throughout (class
// fp32), kernels/attention/decode_kernel_cuda.h; prefill: weights of 16 bits (class bf16-p), tile_kernel_cuda.h; in
// float32 FP32 throughout, float_tile_kernel_cuda.h.
#include "kernels/attention/family_cuda.h"
#include "kernels/attention/tile_memory.h"
#include "ops/attention/dense.h"

namespace lz {
namespace {
using namespace lz::ops::attention_dense;
using attention::CudaProblem;

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  CudaProblem p = attention::DenseCudaProblem(t[kQuery], t[kKey], t[kValue]);
  p.out = attention::CudaRowsOf(t[kOutput], 0, 1, 2);
  p.scale = float(s[kScale].value.f), p.softcap = float(s[kSoftcap].value.f);
  p.causal = s[kCausal].value.i != 0;
  p.window = attention::CudaWindow(s[kWindow].given ? s[kWindow].value.i : -1);
  p.sinks = attention::CudaVectorOf(t[kSinks]), p.slopes = attention::CudaVectorOf(t[kAlibiSlopes]);
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
                                                                     attention::kNotStrict,
                                                                 });
constexpr auto kGroupConstraints = attention::ForGroups(kTileConstraints);
// One query sees the same keys in all rows, so no hidden value is loaded; a mask would hide some.
constexpr auto kDecodeTileConstraints = Joined(attention::kDenseTiles, {
                                                                           {"s_q", Rel::kLe, attention::kMostQueries},
                                                                           attention::kKeysFit,
                                                                           attention::kValuesFit,
                                                                       });
// A few queries of grouped heads over many keys: torch's kernels take a tile of rows for each query head.
constexpr auto kFewQueries = std::to_array<Constraint>({{"s_kv", Rel::kGe, 512}, {"s_q", Rel::kLe, 16}});
constexpr auto kGroupedPreferences =
    std::to_array<Preference>({attention::kWideBeforeExpressions, {.when = kFewQueries, .priority = attention::kBest}});
// Few queries over many keys: torch's own choice does not split the keys (99 us against 31 for 64 queries over 8,192).
constexpr auto kLongKeys = std::to_array<Constraint>({{"b * h_q * s_q", Rel::kLe, 4096}, {"s_kv", Rel::kGe, 4096}});
constexpr auto kOnlyLse = std::to_array<Constraint>({{"return_lse", Rel::kEq, 1}, {"sinks.given", Rel::kEq, 0}});
constexpr auto kGroupPreferences =
    std::to_array<Preference>({{.when = kLongKeys, .priority = attention::kBest - 1},
                               {.when = kOnlyLse, .priority = attention::kAfterCudnnsLse}});
constexpr std::array<std::string_view, 8> kAccepts = {"causal",  "scale", "attn_mask",    "window",
                                                      "softcap", "sinks", "alibi_slopes", "return_lse"};
constexpr std::array<std::string_view, 7> kDecodeAccepts = {"causal", "scale",        "window",    "softcap",
                                                            "sinks",  "alibi_slopes", "return_lse"};
constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::FewSpec<&MakeProblem>("cuda.attention.standard.decode", "attention.standard.decode",
                                     attention::kBeforeExpressions, kConstraints, kAccepts),
    attention::FewSpec<&MakeProblem>("cuda.attention.gqa.decode", "attention.gqa.decode", attention::kBeforeExpressions,
                                     kConstraints, kAccepts),
    attention::FewSpec<&MakeProblem>("cuda.attention.standard.few", "attention.standard.prefill",
                                     attention::kBeforeExpressions, kConstraints, kAccepts),
    attention::FewSpec<&MakeProblem>("cuda.attention.gqa.few", "attention.gqa.prefill", attention::kBeforeExpressions,
                                     kConstraints, kAccepts),
    attention::TileSpec<&MakeProblem>("cuda.attention.standard.decode.mma", "attention.standard.decode",
                                      attention::kAfterTorchsChoice, kDecodeTileConstraints, kDecodeAccepts,
                                      attention::kWidePreferences),
    attention::TileSpec<&MakeProblem>("cuda.attention.gqa.decode.mma", "attention.gqa.decode",
                                      attention::kAfterTorchsChoice, kDecodeTileConstraints, kDecodeAccepts,
                                      attention::kWidePreferences),
    attention::TileSpec<&MakeProblem>("cuda.attention.standard.prefill", "attention.standard.prefill",
                                      attention::kAfterFlash, kTileConstraints, kAccepts, attention::kWidePreferences),
    attention::TileSpec<&MakeProblem>("cuda.attention.gqa.prefill", "attention.gqa.prefill", attention::kAfterFlash,
                                      kTileConstraints, kAccepts, kGroupedPreferences),
    attention::GroupSpec<&MakeProblem>("cuda.attention.standard.prefill.wgmma", "attention.standard.prefill",
                                       attention::kBeforeFlash, kGroupConstraints, kAccepts, kGroupPreferences),
    attention::GroupSpec<&MakeProblem>("cuda.attention.gqa.prefill.wgmma", "attention.gqa.prefill",
                                       attention::kBeforeFlash, kGroupConstraints, kAccepts, kGroupPreferences),
    attention::FloatTileSpec<&MakeProblem>("cuda.attention.standard.prefill.fp32", "attention.standard.prefill",
                                           kFloatConstraints, kAccepts),
    attention::FloatTileSpec<&MakeProblem>("cuda.attention.gqa.prefill.fp32", "attention.gqa.prefill",
                                           kFloatConstraints, kAccepts),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
