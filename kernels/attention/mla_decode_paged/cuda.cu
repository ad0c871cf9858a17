// Decode of multi-head latent attention over paged caches on CUDA; pages are read where they are, each entry once as
// key and value of 64 heads.
//   q_nope [b, h, d_ckv <= 512], q_pe [b, h, d_kpe <= 64], ckv_cache [pages, page_size, d_ckv],
//   kpe_cache [pages, page_size, d_kpe]  f32|f16|bf16, last axis dense
//   output [b, h, d_ckv] dtype of q_nope; lse [b, h] f32
// Invalid index data: as kernels/attention/paged/cuda.cu. Workspace, determinism, captures, numerics: as
// kernels/attention/mla_decode/cuda.cu.
#include "kernels/attention/family_cuda.h"
#include "ops/attention/mla_decode_paged.h"

namespace lz {
namespace {
using namespace lz::ops::attention_mla_decode_paged;
using attention::CudaProblem;

// [pages, page_size, d]: one head.
attention::CudaRows Entries(const lz_tensor& t) { return {Data<void>(t), t.strides[0], t.strides[1], 0}; }

CudaProblem MakeProblem(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  CudaProblem p = {.type = DTypeOf(t[kQNope]), .cache = DTypeOf(t[kCkvCache])};
  p.q = attention::CudaRowsOf(t[kQNope], 0, -1, 1), p.q_more = attention::CudaRowsOf(t[kQPe], 0, -1, 1);
  p.k = p.v = Entries(t[kCkvCache]), p.k_more = Entries(t[kKpeCache]);
  p.out = attention::CudaRowsOf(t[kOutput], 0, -1, 1);
  p.b = int32_t(args->axes[kB]), p.s_q = 1;
  attention::SetHeads(&p, args->axes[kH], 1);
  p.d_v = int32_t(args->axes[kDCkv]), p.d_more = int32_t(args->axes[kDKpe]), p.d_qk = p.d_v + p.d_more;
  p.latent = true;
  p.scale = float(args->scalars[kSmScale].value.f);
  attention::SetLse(&p, t[kLse], 0, 1, -1);
  attention::SetPageNumbers(&p, t[kCkvCache], t[kKVIndices]);
  attention::SetCsr(&p, t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen]);
  return p;
}

// What tiles in 16 bits and in FP32 ask.
constexpr auto kEntries = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"ckv_cache.same_dtype", Rel::kEq, 1},
    {"d_ckv", Rel::kMultipleOf, 8},
    {"d_kpe", Rel::kMultipleOf, 8},
    {"d_ckv", Rel::kLe, 512},
    {"d_kpe", Rel::kGe, 8},
    {"d_kpe", Rel::kLe, 64},
    {"ckv_cache.alignment", Rel::kGe, 4},
    {"kpe_cache.alignment", Rel::kGe, 4},
    {"num_indices * page_size", Rel::kLe, attention::kMostKeys},
});
constexpr auto kConstraints =
    Joined(kEntries, {
                         {"q_nope.alignment", Rel::kGe, 4},
                         {"q_pe.alignment", Rel::kGe, 4},
                         {"device.shared_memory_per_block", Rel::kGe, 162 << 10},  // of a block, static memory included
                     });
constexpr auto kFloatConstraints =
    Joined(kEntries, {
                         {"device.shared_memory_per_block", Rel::kGe, 114 << 10},  // of a block, static memory included
                     });
constexpr auto kFamily = std::to_array<KernelSpec>({
    attention::TileSpec<&MakeProblem>("cuda.attention.mla.decode.paged", "attention.mla.decode.paged",
                                      attention::kBeforeGathers, kConstraints),
    attention::FloatTileSpec<&MakeProblem>("cuda.attention.mla.decode.paged.fp32", "attention.mla.decode.paged",
                                           kFloatConstraints),
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
