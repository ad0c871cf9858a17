// Cross attention of up to 8 queries on CUDA.
//   query [b, s_q, h_q, d_qk], key [b, s_kv, h_kv, d_qk], value [b, s_kv, h_kv, d_v]  f32|f16|bf16, last axis dense
//   output [b, s_q, h_q, d_v] dtype of query; lse [b, h_q, s_q] f32
// Workspace, determinism, captures, numerics: as kernels/attention/dense/cuda.cu.
#include "kernels/attention/problem_cuda.h"
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

int32_t Launch(const lz_kernel_args* args) { return attention::RunFew(MakeProblem(args), args); }
uint64_t Workspace(const lz_kernel_args* args) {
  const CudaProblem p = MakeProblem(args);
  return attention::PartBytes(p, attention::CutOfFew(p));
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
constexpr std::array<std::string_view, 5> kAccepts = {"scale", "attn_mask", "softcap", "sinks", "return_lse"};
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
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("cuda.attention.cross.decode", "attention.cross.decode"),
    Spec("cuda.attention.cross.few", "attention.cross.prefill"),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
