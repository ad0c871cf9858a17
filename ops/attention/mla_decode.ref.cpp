// Reference of attention.mla.decode: FP64, any strides, any dtype of the entries.
#include "ops/attention/mla_decode.h"

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_mla_decode;
using ops::attention::Dot;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const View q(t[kQNope]), q_pe(t[kQPe]), ckv(t[kCkv]), kpe(t[kKpe]), out(t[kOutput]), lse_out(t[kLse]);
  const ops::attention::AttentionOptions options = {.scale = args->scalars[kSmScale].value.f,
                                                    .causal = args->scalars[kCausal].value.i != 0};
  ops::attention::AttendRows(
      options, {q.size(0), ckv.size(0), q.size(1), 1, q.size(2)},
      [&](int64_t i, int64_t h, int64_t j, int64_t) {
        return Dot(q, i * q.stride(0) + h * q.stride(1), ckv, j * ckv.stride(0), q.size(2)) +
               Dot(q_pe, i * q_pe.stride(0) + h * q_pe.stride(1), kpe, j * kpe.stride(0), q_pe.size(2));
      },
      ops::attention::kNoBias,
      [&](int64_t j, int64_t, int64_t c) {
        return ckv.Get({j, 0, c});
      },
      [&](int64_t i, int64_t h, ops::attention::AttentionRow& row, double lse) {
        for (int64_t c = 0; c < q.size(2); ++c) out.Set({i, h, c}, row.output()[size_t(c)]);
        if (lse_out.given()) lse_out.Set({i, h}, lse);
      });
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.attention.mla.decode", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
