// Reference of attention.{standard,gqa}.prefill.paged: FP64, any strides, any dtype of the cache.
#include "ops/attention/paged_prefill.h"

#include "core/kernel.h"
#include "ops/common/paged_keys.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_paged_prefill;
using ops::attention::AttentionRow;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  const View q(t[kQuery]), cache(t[kPagedKCache]), rows(t[kQOIndptr]), out(t[kOutput]), lse_out(t[kLse]);
  const ops::attention::AttentionOptions options = {.scale = s[kSmScale].value.f,
                                                    .softcap = s[kSoftcap].value.f,
                                                    .causal = s[kCausal].value.i != 0,
                                                    .window = ops::attention::WindowOf(s[kWindowLeft]),
                                                    .sinks = &t[kSinks],
                                                    .slopes = &t[kAlibiSlopes]};
  const ops::attention::CsrPages pages(t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen], cache.size(1));
  const int64_t batch = rows.size(0) - 1;
  const auto count = [&](int64_t b) { return rows.GetInt({b + 1}) - rows.GetInt({b}); };
  if (!ops::attention::OffsetsValid(rows, q.size(0)) || !pages.Valid(cache, batch, options, count)) return 1;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t first = rows.GetInt({b});
    ops::attention::AttendPaged(options, {t[kQuery], t[kPagedKCache], t[kPagedVCache], &t[kKScale], &t[kVScale]},
                                pages.Sequence(b), count(b), first * q.stride(0), q.stride(0), q.stride(1),
                                [&](int64_t i, int64_t h, AttentionRow& row, double lse) {
                                  for (int64_t c = 0; c < out.size(2); ++c) {
                                    out.Set({first + i, h, c}, row.output()[size_t(c)]);
                                  }
                                  if (lse_out.given()) lse_out.Set({first + i, h}, lse);
                                });
  }
  ops::attention::ClearPacked(t[kOutput], t[kLse], rows.GetInt({batch}));
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    ReferenceKernel("ref.attention.standard.prefill.paged", &Launch),
    ReferenceKernel("ref.attention.gqa.prefill.paged", &Launch),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
