// Decode attention over a shared prefix and paged suffixes on CUDA: one walk over the keys of both.
//   query [b, h_q, d_qk]  f32|f16|bf16; shared_k, shared_v [n_shared, h_kv, d], caches [pages, page_size, h_kv, d]
//   kCudaCaches, last axis dense; output [b, h_q, d_v] dtype of query; lse [b, h_q] f32
// Invalid index data, workspace, determinism, captures, numerics: as kernels/attention/paged/cuda.cu.
#include "kernels/attention/problem_cuda.h"
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
  attention::SetPages(&p, t[kKCache], t[kVCache], t[kKScale], t[kVScale], t[kKVIndices]);
  attention::SetCsr(&p, t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen]);
  p.shared = int32_t(args->axes[kNShared]);
  p.shared_k = attention::CudaRowsOf(t[kSharedK], -1, 0, 1), p.shared_v = attention::CudaRowsOf(t[kSharedV], -1, 0, 1);
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
    {"paged_k_cache.dtype", Rel::kInMask, int64_t(attention::kCudaCaches)},
    {"paged_k_cache.alignment", Rel::kGe, 4},
    {"paged_v_cache.alignment", Rel::kGe, 4},
    {"shared_k.alignment", Rel::kGe, 4},
    {"shared_v.alignment", Rel::kGe, 4},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
    {"n_shared", Rel::kLe, attention::kMostKeys},
});
constexpr KernelSpec Spec(std::string_view id, std::string_view operation) {
  return {.id = id,
          .operation = operation,
          .platform = Platform::kCuda,
          .dtypes = kF32F16BF16,
          .constraints = kConstraints,
          .accepts = kAcceptsAll,
          .strides = Strides::kLastDimDense,
          .priority = kNotYetMeasured,
          .deterministic = true,
          .cuda_graph_safe = true,
          .numerics = "fp32",
          .launch = &Launch,
          .workspace = &Workspace};
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("cuda.attention.standard.decode.cascade", "attention.standard.decode.cascade"),
    Spec("cuda.attention.gqa.decode.cascade", "attention.gqa.decode.cascade"),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
