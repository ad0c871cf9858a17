// Reference of attention.cross.{prefill,decode}.paged: FP64, any strides, any dtype of the cache.
#include "ops/attention/paged_cross.h"

#include "core/kernel.h"
#include "ops/common/paged_keys.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_paged_cross;
using ops::attention::AttentionRow;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  const View q(t[kQuery]), cache(t[kPagedKCache]), out(t[kOutput]), lse_out(t[kLse]);
  const ops::attention::AttentionOptions options = {
      .scale = s[kSmScale].value.f, .softcap = s[kSoftcap].value.f, .sinks = &t[kSinks]};
  const ops::attention::CsrPages pages(t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen], cache.size(1));
  if (!pages.Valid(cache, q.size(0), options, [&](int64_t) { return q.size(1); })) return 1;
  for (int64_t b = 0; b < q.size(0); ++b) {
    ops::attention::AttendPaged(options, {t[kQuery], t[kPagedKCache], t[kPagedVCache], &t[kKScale], &t[kVScale]},
                                pages.Sequence(b), q.size(1), b * q.stride(0), q.stride(1), q.stride(2),
                                [&](int64_t i, int64_t h, AttentionRow& row, double lse) {
                                  for (int64_t c = 0; c < out.size(3); ++c) {
                                    out.Set({b, i, h, c}, row.output()[size_t(c)]);
                                  }
                                  if (lse_out.given()) lse_out.Set({b, h, i}, lse);
                                });
  }
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    ReferenceKernel("ref.attention.cross.decode.paged", &Launch),
    ReferenceKernel("ref.attention.cross.prefill.paged", &Launch),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
