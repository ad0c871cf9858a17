// Reference of attention.cross.{prefill,decode}: FP64, any strides, any float dtype. Takes every argument
// except dropout_p.
#include "ops/attention/cross.h"

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_cross;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  ops::attention::AttendDense({.scale = s[kScale].value.f, .softcap = s[kSoftcap].value.f, .sinks = &t[kSinks]},
                              {t[kQuery], t[kKey], t[kValue], t[kAttnMask], t[kOutput], t[kLse]});
  return 0;
}

constexpr auto kAccepts = std::to_array<std::string_view>({"scale", "attn_mask", "softcap", "sinks", "return_lse"});
constexpr auto kFamily = std::to_array<KernelSpec>({
    ReferenceKernel("ref.attention.cross.decode", &Launch, kFloats, kAccepts),
    ReferenceKernel("ref.attention.cross.prefill", &Launch, kFloats, kAccepts),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
