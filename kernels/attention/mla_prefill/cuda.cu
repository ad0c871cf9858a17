// Prefill of multi-head latent attention on CUDA: the two parts of queries and keys are read where they are.
//   q_nope [b, s_q, h, d_nope <= 128], q_pe [b, s_q, h, d_pe <= 64], k_nope [b, s_kv, h, d_nope], k_pe [b, s_kv, 1,
//   d_pe], value [b, s_kv, h, d_v <= 128]  f32|f16|bf16, last axis dense; output [b, s_q, h, d_v] dtype of q_nope;
//   lse [b, h, s_q] f32
// Workspace, determinism, captures, numerics: as kernels/attention/mla_decode/cuda.cu.
#include "kernels/attention/family_cuda.h"
#include "ops/attention/mla_prefill.h"

namespace lz {
namespace {
using namespace lz::ops::attention_mla_prefill;
using attention::CudaProblem;

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  CudaProblem p = attention::DenseCudaProblem(t[kQNope], t[kKNope], t[kValue]);
  p.q_more = attention::CudaRowsOf(t[kQPe], 0, 1, 2), p.k_more = attention::CudaRowsOf(t[kKPe], 0, 1, 2);
  p.k_more.head = 0;  // one for all heads
  p.out = attention::CudaRowsOf(t[kOutput], 0, 1, 2);
  p.d_more = int32_t(args->axes[kDPe]), p.d_qk += p.d_more;
  p.scale = float(args->scalars[kSmScale].value.f);
  p.causal = args->scalars[kCausal].value.i != 0;
  attention::SetLse(&p, t[kLse], 0, 1, 2);
  return p;
}

// What tiles in 16 bits and in FP32 ask.
constexpr auto kHeads = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"d_nope", Rel::kMultipleOf, 8},
    {"d_pe", Rel::kMultipleOf, 8},
    {"d_v", Rel::kMultipleOf, 8},
    {"d_nope", Rel::kLe, 128},
    {"d_pe", Rel::kGe, 8},
    {"d_pe", Rel::kLe, 64},
    {"d_v", Rel::kLe, 128},
    {"k_nope.alignment", Rel::kGe, 4},
    {"k_pe.alignment", Rel::kGe, 4},
    {"value.alignment", Rel::kGe, 4},
    {"s_kv", Rel::kLe, attention::kMostKeys},
    {"s_q", Rel::kLe, attention::kMostQueries},
});
constexpr auto kConstraints =
    Joined(kHeads, {
                       {"q_nope.alignment", Rel::kGe, 4},
                       {"q_pe.alignment", Rel::kGe, 4},
                       {"device.shared_memory_per_block", Rel::kGe, 116 << 10},  // of a block, static memory included
                       attention::kNotStrict,
                   });
constexpr auto kFloatConstraints = Joined(kHeads, {
                                                      {"device.shared_memory_per_block", Rel::kGe, 80 << 10},
                                                  });
constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::TileSpec<&MakeProblem>("cuda.attention.mla.prefill", "attention.mla.prefill",
                                      attention::kBeforeExpressions, kConstraints),
    attention::FloatTileSpec<&MakeProblem>("cuda.attention.mla.prefill.fp32", "attention.mla.prefill",
                                           kFloatConstraints),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
