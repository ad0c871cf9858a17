// Reference of attention.{standard,gqa}.decode.paged: FP64, any strides, any dtype of the cache.
#include "ops/attention/paged.h"

#include "core/kernel.h"
#include "ops/common/paged_keys.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_paged;
using ops::attention::AttentionRow;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const View q(t[kQ]), cache(t[kPagedKCache]), out(t[kOutput]), lse_out(t[kLse]);
  const ops::attention::AttentionOptions options = {.scale = args->scalars[kSmScale].value.f,
                                                    .softcap = args->scalars[kSoftcap].value.f,
                                                    .window = ops::attention::WindowOf(args->scalars[kWindowLeft]),
                                                    .sinks = &t[kSinks],
                                                    .slopes = &t[kAlibiSlopes]};
  const ops::attention::CsrPages pages(t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen], cache.size(1));
  if (!pages.Valid(cache, q.size(0), options, [](int64_t) { return 1; })) return 1;
  for (int64_t s = 0; s < q.size(0); ++s) {
    ops::attention::AttendPaged(options, {t[kQ], t[kPagedKCache], t[kPagedVCache], &t[kKScale], &t[kVScale]},
                                pages.Sequence(s), 1, s * q.stride(0), 0, q.stride(1),
                                [&](int64_t, int64_t h, AttentionRow& row, double lse) {
                                  for (int64_t c = 0; c < out.size(2); ++c) out.Set({s, h, c}, row.output()[size_t(c)]);
                                  if (lse_out.given()) lse_out.Set({s, h}, lse);
                                });
  }
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    ReferenceKernel("ref.attention.standard.decode.paged", &Launch),
    ReferenceKernel("ref.attention.gqa.decode.paged", &Launch),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
