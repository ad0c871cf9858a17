// Attention of up to 8 queries, of any number in float32, over runs of the keys on CUDA, un-merged: the parts of
// kernels/attention/dense/cuda.cu.
//   query [b, s_q, h_q, d_qk], key [b, s_kv, h_kv, d_qk], value [b, s_kv, h_kv, d_v]  f32|f16|bf16, last axis dense
//   partials [splits, b * s_q, h_q, d_v], lse and row_sum [splits, b * s_q, h_q] f32, contiguous
// Workspace: none. Deterministic. Safe in graph captures. FP32 throughout.
#include "kernels/attention/family_cuda.h"
#include "kernels/attention/tile_memory.h"
#include "ops/attention/partials.h"

namespace lz {
namespace {
using namespace lz::ops::attention_partials;

bool Contiguous(const lz_tensor& t) {
  int64_t stride = 1;
  for (int i = t.ndim - 1; i >= 0; stride *= t.shape[i--]) {
    if (t.shape[i] != 1 && t.strides[i] != stride) return false;
  }
  return true;
}

template <int32_t (*kParts)(const attention::CudaProblem&, void*)>
int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  for (const Tensor out : {kPartials, kLse, kRowSum}) {
    if (Given(t[out]) && !Contiguous(t[out])) return LZ_LAUNCH_REFUSED;
  }
  const lz_scalar* s = args->scalars;
  attention::CudaProblem p = attention::DenseCudaProblem(t[kQuery], t[kKey], t[kValue]);
  p.scale = float(s[kScale].value.f), p.softcap = float(s[kSoftcap].value.f);
  p.causal = s[kCausal].value.i != 0;
  p.window = attention::CudaWindow(s[kWindow].given ? s[kWindow].value.i : -1);
  p.slopes = attention::CudaVectorOf(t[kAlibiSlopes]);
  attention::SetMask(&p, t[kAttnMask]);
  p.splits = int32_t(s[kNumSplits].value.i);
  p.run = (p.s_kv + p.splits - 1) / p.splits;
  p.run = p.run > 0 ? p.run : 1;
  p.raw = s[kRaw].value.i != 0;
  p.part = Data<float>(t[kPartials]), p.part_top = Data<float>(t[kLse]);
  p.part_sum = Given(t[kRowSum]) ? Data<float>(t[kRowSum]) : nullptr;
  return kParts(p, args->stream);
}

constexpr auto kFloatConstraints = attention::WithHeadDims({
    {"key.alignment", Rel::kGe, 4},
    {"value.alignment", Rel::kGe, 4},
    {"s_kv", Rel::kLe, attention::kMostKeys},
    {"s_q", Rel::kLe, attention::kMostQueries},
});
constexpr auto kConstraints = Joined(kFloatConstraints, {{"s_q", Rel::kLe, attention::kFewQueries}});
// One query without a mask sees the same keys in all rows, so no hidden value is loaded.
constexpr auto kTileConstraints = Joined(attention::kDenseTiles, {
                                                                     {"s_q", Rel::kEq, 1},
                                                                     attention::kKeysFit,
                                                                     attention::kValuesFit,
                                                                 });
constexpr std::array<std::string_view, 7> kAccepts = {"raw",    "causal",  "scale",       "attn_mask",
                                                      "window", "softcap", "alibi_slopes"};
constexpr std::array<std::string_view, 6> kTileAccepts = {"raw",    "causal",  "scale",
                                                          "window", "softcap", "alibi_slopes"};
constexpr KernelSpec WithoutWorkspace(KernelSpec spec, lz_launch_fn launch) {
  spec.launch = launch;
  spec.workspace = nullptr;
  return spec;
}
constexpr KernelSpec Spec(std::string_view id, std::string_view operation) {
  return WithoutWorkspace(attention::FewSpec<nullptr>(id, operation, attention::kBeforeGathers, kConstraints, kAccepts),
                          &Launch<&attention::DecodeParts>);
}
constexpr KernelSpec FloatTiles(std::string_view id, std::string_view operation) {
  return WithoutWorkspace(attention::FloatTileSpec<nullptr>(id, operation, kFloatConstraints, kAccepts),
                          &Launch<&attention::FloatTileParts>);
}
constexpr KernelSpec Tiles(std::string_view id, std::string_view operation) {
  return WithoutWorkspace(attention::TileSpec<nullptr>(id, operation, attention::kBest, kTileConstraints, kTileAccepts,
                                                       attention::kWidePreferences),
                          &Launch<&attention::TileParts>);
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("cuda.attention.standard.partials", "attention.standard.partials"),
    Spec("cuda.attention.gqa.partials", "attention.gqa.partials"),
    Tiles("cuda.attention.standard.partials.mma", "attention.standard.partials"),
    Tiles("cuda.attention.gqa.partials.mma", "attention.gqa.partials"),
    FloatTiles("cuda.attention.standard.partials.fp32", "attention.standard.partials"),
    FloatTiles("cuda.attention.gqa.partials.fp32", "attention.gqa.partials"),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
