// Reference of attention.{standard,gqa}.decode.pod: FP64, any strides, any dtype of the cache.
#include "ops/attention/pod.h"

#include "core/kernel.h"
#include "ops/common/paged_keys.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_pod;
using ops::attention::AttentionRow;
using ops::attention::OffsetsValid;

void Prefill(const lz_tensor* t, const ops::attention::AttentionOptions& options) {
  const View cu_q(t[kCuSeqlensQ]), cu_kv(t[kCuSeqlensKV]);
  const ops::attention::PackedTensors tensors = {t[kQueryP], t[kKeyP], t[kValueP], t[kOutputP], t[kLseP]};
  int64_t end_q = 0;
  for (int64_t s = 0; s + 1 < cu_q.size(0); ++s) {
    const int64_t first_q = end_q, first_kv = cu_kv.GetInt({s});
    end_q = cu_q.GetInt({s + 1});
    ops::attention::AttendPacked(options, tensors, first_q, end_q, first_kv, cu_kv.GetInt({s + 1}) - first_kv);
  }
  ops::attention::ClearPacked(t[kOutputP], t[kLseP], end_q);
}

void Decode(const lz_tensor* t, const ops::attention::AttentionOptions& options,
            const ops::attention::CsrPages& pages) {
  const View q(t[kQueryD]), out(t[kOutputD]), lse_out(t[kLseD]);
  for (int64_t s = 0; s < q.size(0); ++s) {
    ops::attention::AttendPaged(options, {t[kQueryD], t[kPagedKCache], t[kPagedVCache]}, pages.Sequence(s), 1,
                                s * q.stride(0), 0, q.stride(1),
                                [&](int64_t, int64_t h, AttentionRow& row, double lse) {
                                  for (int64_t c = 0; c < out.size(2); ++c) out.Set({s, h, c}, row.output()[size_t(c)]);
                                  if (lse_out.given()) lse_out.Set({s, h}, lse);
                                });
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  const View cache(t[kPagedKCache]);
  const ops::attention::AttentionOptions options = {.scale = s[kSmScale].value.f,
                                                    .softcap = s[kSoftcap].value.f,
                                                    .causal = s[kCausal].value.i != 0,
                                                    .window = ops::attention::WindowOf(s[kWindowLeft]),
                                                    .sinks = &t[kSinks]};
  const ops::attention::CsrPages pages(t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen], cache.size(1));
  if (!OffsetsValid(View(t[kCuSeqlensQ]), t[kQueryP].shape[0])) return 1;
  if (!OffsetsValid(View(t[kCuSeqlensKV]), t[kKeyP].shape[0])) return 1;
  if (!pages.Valid(cache, t[kQueryD].shape[0], options, [](int64_t) { return 1; })) return 1;
  Prefill(t, options);
  Decode(t, options, pages);
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    ReferenceKernel("ref.attention.standard.decode.pod", &Launch),
    ReferenceKernel("ref.attention.gqa.decode.pod", &Launch),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
