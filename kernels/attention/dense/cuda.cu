// Attention on CUDA over dense keys and values: decode, prefill of up to 8 queries, and prefill in 16 bits.
//   query [b, s_q, h_q, d_qk], key [b, s_kv, h_kv, d_qk], value [b, s_kv, h_kv, d_v]  f32|f16|bf16, last axis dense
//   output [b, s_q, h_q, d_v] dtype of query; lse [b, h_q, s_q] f32
// Workspace: parts, where keys are split. Deterministic. Safe in graph captures. Few queries: FP32 throughout (class
// fp32), kernels/attention/decode_kernel_cuda.h; prefill: weights of 16 bits (class bf16-p), tile_kernel_cuda.h.
#include "kernels/attention/problem_cuda.h"
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

int32_t Launch(const lz_kernel_args* args) { return attention::RunFew(MakeProblem(args), args); }
uint64_t Workspace(const lz_kernel_args* args) {
  const CudaProblem p = MakeProblem(args);
  return attention::PartBytes(p, attention::CutOfFew(p));
}

int32_t LaunchTiles(const lz_kernel_args* args) { return attention::RunTiles(MakeProblem(args), args); }
uint64_t TileWorkspace(const lz_kernel_args* args) {
  const CudaProblem p = MakeProblem(args);
  return attention::PartBytes(p, attention::CutOfTiles(p));
}

constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"d_qk", Rel::kMultipleOf, 8},
    {"d_v", Rel::kMultipleOf, 8},
    {"d_qk", Rel::kLe, attention::kMostHeadDim},
    {"d_v", Rel::kLe, attention::kMostHeadDim},
    {"key.alignment", Rel::kGe, 4},
    {"value.alignment", Rel::kGe, 4},
    {"s_kv", Rel::kLe, attention::kMostKeys},
    {"s_q", Rel::kLe, attention::kFewQueries},
});
constexpr auto kTileConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"key.same_dtype", Rel::kEq, 1},
    {"value.same_dtype", Rel::kEq, 1},
    {"d_qk", Rel::kMultipleOf, 8},
    {"d_v", Rel::kMultipleOf, 8},
    {"d_qk", Rel::kLe, attention::kMostHeadDim},
    {"d_v", Rel::kLe, attention::kMostHeadDim},
    {"query.alignment", Rel::kGe, 4},
    {"key.alignment", Rel::kGe, 4},
    {"value.alignment", Rel::kGe, 4},
    {"s_kv", Rel::kLe, attention::kMostKeys},
    {"s_q", Rel::kLe, attention::kMostQueries},
    {"policy.strict_mode", Rel::kEq, 0},  // a NaN of a value that a row does not see may reach it
});
constexpr std::array<std::string_view, 8> kAccepts = {"causal",  "scale", "attn_mask",    "window",
                                                      "softcap", "sinks", "alibi_slopes", "return_lse"};
constexpr KernelSpec Spec(std::string_view id, std::string_view operation) {
  return {.id = id,
          .operation = operation,
          .platform = Platform::kCuda,
          .dtypes = kF32F16BF16,
          .constraints = kConstraints,
          .accepts = kAccepts,
          .strides = Strides::kLastDimDense,
          .priority = kNotYetMeasured,
          .deterministic = true,
          .cuda_graph_safe = true,
          .numerics = "fp32",
          .launch = &Launch,
          .workspace = &Workspace};
}
constexpr KernelSpec Tiles(std::string_view id, std::string_view operation) {
  KernelSpec spec = Spec(id, operation);
  spec.dtypes = Mask(DType::kF16, DType::kBF16);
  spec.constraints = kTileConstraints;
  spec.numerics = "bf16-p";
  spec.launch = &LaunchTiles;
  spec.workspace = &TileWorkspace;
  return spec;
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("cuda.attention.standard.decode", "attention.standard.decode"),
    Spec("cuda.attention.gqa.decode", "attention.gqa.decode"),
    Spec("cuda.attention.standard.few", "attention.standard.prefill"),
    Spec("cuda.attention.gqa.few", "attention.gqa.prefill"),
    Tiles("cuda.attention.standard.prefill", "attention.standard.prefill"),
    Tiles("cuda.attention.gqa.prefill", "attention.gqa.prefill"),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
