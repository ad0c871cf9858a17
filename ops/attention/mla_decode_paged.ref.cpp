// Reference of attention.mla.decode.paged: FP64, any strides, any dtype of the cache.
#include "ops/attention/mla_decode_paged.h"

#include "core/kernel.h"
#include "ops/common/paged_keys.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_mla_decode_paged;
using ops::attention::Dot;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const View q(t[kQNope]), q_pe(t[kQPe]), ckv(t[kCkvCache]), kpe(t[kKpeCache]), out(t[kOutput]), lse_out(t[kLse]);
  const ops::attention::AttentionOptions options = {.scale = args->scalars[kSmScale].value.f};
  const ops::attention::CsrPages pages(t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen], ckv.size(1));
  if (!pages.Valid(ckv, q.size(0), options, [](int64_t) { return 1; })) return 1;
  for (int64_t s = 0; s < q.size(0); ++s) {
    const ops::attention::PageList list = pages.Sequence(s);
    ops::attention::AttendRows(
        options, {1, list.length, q.size(1), 1, q.size(2)},
        [&](int64_t, int64_t h, int64_t j, int64_t) {
          return Dot(q, s * q.stride(0) + h * q.stride(1), ckv, list.Offset(ckv, j), q.size(2)) +
                 Dot(q_pe, s * q_pe.stride(0) + h * q_pe.stride(1), kpe, list.Offset(kpe, j), q_pe.size(2));
        },
        ops::attention::kNoBias,
        [&](int64_t j, int64_t, int64_t c) { return ckv.Load(list.Offset(ckv, j) + c * ckv.stride(2)); },
        [&](int64_t, int64_t h, ops::attention::AttentionRow& row, double lse) {
          for (int64_t c = 0; c < q.size(2); ++c) out.Set({s, h, c}, row.output()[size_t(c)]);
          if (lse_out.given()) lse_out.Set({s, h}, lse);
        });
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.attention.mla.decode.paged", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
