// Reference of attention.{standard,gqa}.prefill.ragged: FP64, any strides, any float dtype.
#include "ops/attention/ragged.h"

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_ragged;
using ops::attention::LengthsWithin;
using ops::attention::OffsetsValid;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar *scalars = args->scalars, &max_q = scalars[kMaxSeqlenQ], &max_kv = scalars[kMaxSeqlenKV];
  const View cu_q(t[kCuSeqlensQ]), cu_kv(t[kCuSeqlensKV]);
  if (!OffsetsValid(cu_q, t[kQuery].shape[0]) || !OffsetsValid(cu_kv, t[kKey].shape[0])) return 1;
  if (max_q.given && !LengthsWithin(cu_q, max_q.value.i)) return 1;
  if (max_kv.given && !LengthsWithin(cu_kv, max_kv.value.i)) return 1;
  const ops::attention::AttentionOptions options = {.scale = scalars[kScale].value.f,
                                                    .softcap = scalars[kSoftcap].value.f,
                                                    .causal = scalars[kCausal].value.i != 0,
                                                    .window = scalars[kWindow].value.i,
                                                    .sinks = &t[kSinks],
                                                    .slopes = &t[kAlibiSlopes]};
  const ops::attention::PackedTensors tensors = {t[kQuery], t[kKey], t[kValue], t[kOutput], t[kLse]};
  int64_t end_q = 0;
  for (int64_t s = 0; s + 1 < cu_q.size(0); ++s) {
    const int64_t first_q = end_q, first_kv = cu_kv.GetInt({s});
    end_q = cu_q.GetInt({s + 1});
    ops::attention::AttendPacked(options, tensors, first_q, end_q, first_kv, cu_kv.GetInt({s + 1}) - first_kv);
  }
  ops::attention::ClearPacked(t[kOutput], t[kLse], end_q);
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    ReferenceKernel("ref.attention.standard.prefill.ragged", &Launch),
    ReferenceKernel("ref.attention.gqa.prefill.ragged", &Launch),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
