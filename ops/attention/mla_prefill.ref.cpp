// Reference of attention.mla.prefill: FP64, any strides, any float dtype.
#include "ops/attention/mla_prefill.h"

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_mla_prefill;
using ops::attention::Dot;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const View q(t[kQNope]), q_pe(t[kQPe]), k(t[kKNope]), k_pe(t[kKPe]), v(t[kValue]), out(t[kOutput]), lse_out(t[kLse]);
  const ops::attention::AttentionOptions options = {.scale = args->scalars[kSmScale].value.f,
                                                    .causal = args->scalars[kCausal].value.i != 0};
  const auto at = [](const View& x, int64_t b, int64_t s, int64_t h) {
    return b * x.stride(0) + s * x.stride(1) + h * x.stride(2);
  };
  for (int64_t b = 0; b < q.size(0); ++b) {
    ops::attention::AttendRows(
        options, {q.size(1), k.size(1), q.size(2), q.size(2), v.size(3)},
        [&](int64_t i, int64_t h, int64_t j, int64_t kv) {
          return Dot(q, at(q, b, i, h), k, at(k, b, j, kv), q.size(3)) +
                 Dot(q_pe, at(q_pe, b, i, h), k_pe, at(k_pe, b, j, 0), q_pe.size(3));
        },
        ops::attention::kNoBias,
        [&](int64_t j, int64_t kv, int64_t c) {
          return v.Get({b, j, kv, c});
        },
        [&](int64_t i, int64_t h, ops::attention::AttentionRow& row, double lse) {
          for (int64_t c = 0; c < v.size(3); ++c) out.Set({b, i, h, c}, row.output()[size_t(c)]);
          if (lse_out.given()) lse_out.Set({b, h, i}, lse);
        });
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.attention.mla.prefill", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
