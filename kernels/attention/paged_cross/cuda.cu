// Cross attention over a paged cache on CUDA; pages are read where they are, once for each 8 rows of a KV head, or 64
// in 16 bits.
//   query [b, s_q, h_q, d_qk]  f32|f16|bf16; caches [pages, page_size, h_kv, d] kCudaCaches, last axis dense
//   output [b, s_q, h_q, d_v] dtype of query; lse [b, h_q, s_q] f32
// Invalid index data, workspace, determinism, captures, numerics: as kernels/attention/paged/cuda.cu.
#include "kernels/attention/problem_cuda.h"
#include "ops/attention/paged_cross.h"

namespace lz {
namespace {
using namespace lz::ops::attention_paged_cross;
using attention::CudaProblem;

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  CudaProblem p = {.type = DTypeOf(t[kQuery])};
  p.b = int32_t(args->axes[kB]), p.s_q = int32_t(args->axes[kSQ]), p.d_qk = int32_t(args->axes[kDQK]);
  p.q = attention::CudaRowsOf(t[kQuery], 0, 1, 2), p.out = attention::CudaRowsOf(t[kOutput], 0, 1, 2);
  p.scale = float(args->scalars[kSmScale].value.f), p.softcap = float(args->scalars[kSoftcap].value.f);
  p.sinks = attention::CudaVectorOf(t[kSinks]);
  attention::SetLse(&p, t[kLse], 0, 1, 2);
  attention::SetHeads(&p, args->axes[kHQ], args->axes[kHKV]);
  attention::SetPages(&p, t[kKCache], t[kVCache], t[kKScale], t[kVScale], t[kKVIndices]);
  attention::SetCsr(&p, t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen]);
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
    {"paged_k_cache.dtype", Rel::kInMask, int64_t(attention::kCudaCaches)},
    {"paged_k_cache.alignment", Rel::kGe, 4},
    {"paged_v_cache.alignment", Rel::kGe, 4},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
    {"s_q", Rel::kLe, attention::kMostQueries},
});
constexpr auto kTileConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"paged_k_cache.same_dtype", Rel::kEq, 1},
    {"d_qk", Rel::kMultipleOf, 8},
    {"d_v", Rel::kMultipleOf, 8},
    {"d_qk", Rel::kLe, attention::kMostHeadDim},
    {"d_v", Rel::kLe, attention::kMostHeadDim},
    {"query.alignment", Rel::kGe, 4},
    {"paged_k_cache.alignment", Rel::kGe, 4},
    {"paged_v_cache.alignment", Rel::kGe, 4},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
    {"s_q", Rel::kLe, attention::kMostQueries},
});
constexpr std::array<std::string_view, 6> kAccepts = {"sm_scale", "softcap", "sinks",
                                                      "k_scale",  "v_scale", "return_lse"};
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
    Spec("cuda.attention.cross.decode.paged", "attention.cross.decode.paged"),
    Spec("cuda.attention.cross.few.paged", "attention.cross.prefill.paged"),
    Tiles("cuda.attention.cross.prefill.paged", "attention.cross.prefill.paged"),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
