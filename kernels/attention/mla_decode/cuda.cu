// Decode of multi-head latent attention over one sequence on CUDA: all heads share each entry, which is read once as
// key and value.
//   q_nope [tokens, h, d_ckv <= 512], q_pe [tokens, h, d_kpe <= 64], ckv [kv_len, 1, d_ckv], kpe [kv_len, 1, d_kpe]
//   f32|f16|bf16, last axis dense; output [tokens, h, d_ckv] dtype of q_nope; lse [tokens, h] f32
// Workspace: parts, where entries are split. Deterministic. Safe in graph captures. Weights of 16 bits (class bf16-p),
// kernels/attention/tile_kernel_cuda.h; in float32 FP32 throughout (class fp32), float_tile_kernel_cuda.h.
#include "kernels/attention/family_cuda.h"
#include "ops/attention/mla_decode.h"

namespace lz {
namespace {
using namespace lz::ops::attention_mla_decode;
using attention::CudaProblem;

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  CudaProblem p = {.type = DTypeOf(t[kQNope]), .cache = DTypeOf(t[kCkv])};
  p.q = attention::CudaRowsOf(t[kQNope], -1, 0, 1), p.q_more = attention::CudaRowsOf(t[kQPe], -1, 0, 1);
  p.k = p.v = attention::CudaRowsOf(t[kCkv], -1, 0, 1), p.k_more = attention::CudaRowsOf(t[kKpe], -1, 0, 1);
  p.out = attention::CudaRowsOf(t[kOutput], -1, 0, 1);
  p.b = 1, p.s_q = int32_t(args->axes[kTokens]), p.s_kv = args->axes[kKVLen];
  attention::SetHeads(&p, args->axes[kH], 1);
  p.d_v = int32_t(args->axes[kDCkv]), p.d_more = int32_t(args->axes[kDKpe]), p.d_qk = p.d_v + p.d_more;
  p.latent = true;
  p.scale = float(args->scalars[kSmScale].value.f);
  p.causal = args->scalars[kCausal].value.i != 0;
  if (Given(t[kLse])) {
    p.lse = Data<float>(t[kLse]);
    p.lse_s = t[kLse].strides[0], p.lse_h = t[kLse].strides[1];
  }
  return p;
}

// What tiles in 16 bits and in FP32 ask.
constexpr auto kEntries = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"ckv.same_dtype", Rel::kEq, 1},
    {"d_ckv", Rel::kMultipleOf, 8},
    {"d_kpe", Rel::kMultipleOf, 8},
    {"d_ckv", Rel::kLe, 512},
    {"d_kpe", Rel::kGe, 8},
    {"d_kpe", Rel::kLe, 64},
    {"ckv.alignment", Rel::kGe, 4},
    {"kpe.alignment", Rel::kGe, 4},
    {"kv_len", Rel::kLe, attention::kMostKeys},
    {"tokens", Rel::kLe, int64_t{1} << 20},
});
constexpr auto kConstraints =
    Joined(kEntries, {
                         {"q_nope.alignment", Rel::kGe, 4},
                         {"q_pe.alignment", Rel::kGe, 4},
                         {"device.shared_memory_per_block", Rel::kGe, 162 << 10},  // of a block, static memory included
                         attention::kNotStrict,
                     });
constexpr auto kFloatConstraints =
    Joined(kEntries, {
                         {"device.shared_memory_per_block", Rel::kGe, 114 << 10},  // of a block, static memory included
                     });
constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::TileSpec<&MakeProblem>("cuda.attention.mla.decode", "attention.mla.decode", attention::kBeforeGathers,
                                      kConstraints),
    attention::FloatTileSpec<&MakeProblem>("cuda.attention.mla.decode.fp32", "attention.mla.decode", kFloatConstraints),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
