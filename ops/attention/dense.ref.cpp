// Reference of attention.{standard,gqa}.{prefill,decode}: FP64, any strides, any float dtype; output may alias query if
// their rows are the same. Takes every argument except dropout_p.
#include "ops/attention/dense.h"

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_dense;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  ops::attention::AttendDense({.scale = s[kScale].value.f,
                               .softcap = s[kSoftcap].value.f,
                               .causal = s[kCausal].value.i != 0,
                               .window = s[kWindow].value.i,
                               .sinks = &t[kSinks],
                               .slopes = &t[kAlibiSlopes]},
                              {t[kQuery], t[kKey], t[kValue], t[kAttnMask], t[kOutput], t[kLse]});
  return 0;
}

constexpr auto kAccepts = std::to_array<std::string_view>(
    {"causal", "scale", "attn_mask", "window", "softcap", "sinks", "alibi_slopes", "return_lse"});
constexpr auto kFamily = std::to_array<KernelSpec>({
    ReferenceKernel("ref.attention.standard.decode", &Launch, kFloats, kAccepts),
    ReferenceKernel("ref.attention.standard.prefill", &Launch, kFloats, kAccepts),
    ReferenceKernel("ref.attention.gqa.decode", &Launch, kFloats, kAccepts),
    ReferenceKernel("ref.attention.gqa.prefill", &Launch, kFloats, kAccepts),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
