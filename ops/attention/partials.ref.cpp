// Reference of attention.{standard,gqa}.partials: FP64, any strides, any float dtype.
#include "ops/attention/partials.h"

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_partials;
using ops::attention::AttentionRow;
using ops::attention::kHidden;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const lz_scalar* s = args->scalars;
  const View q(t[kQuery]), k(t[kKey]), v(t[kValue]), out(t[kPartials]), lse_out(t[kLse]), sum_out(t[kRowSum]);
  const ops::attention::Mask4 mask(t[kAttnMask]);
  const ops::attention::AttentionOptions options = {.scale = s[kScale].value.f,
                                                    .softcap = s[kSoftcap].value.f,
                                                    .causal = s[kCausal].value.i != 0,
                                                    .window = s[kWindow].value.i,
                                                    .slopes = &t[kAlibiSlopes]};
  const int64_t splits = s[kNumSplits].value.i, s_q = q.size(1), s_kv = k.size(1);
  const int64_t run = s_kv / splits + (s_kv % splits != 0);
  for (int64_t part = 0; part < splits; ++part) {
    for (int64_t b = 0; b < q.size(0); ++b) {
      ops::attention::AttendRows(
          options, {s_q, s_kv, q.size(2), k.size(2), v.size(3)},
          [&](int64_t i, int64_t h, int64_t j, int64_t kv) {
            return ops::attention::Dot(q, b * q.stride(0) + i * q.stride(1) + h * q.stride(2), k,
                                       b * k.stride(0) + j * k.stride(1) + kv * k.stride(2), q.size(3));
          },
          [&](int64_t h, int64_t i, int64_t j) { return j / run == part ? mask.At(b, h, i, j) : kHidden; },
          [&](int64_t j, int64_t kv, int64_t c) {
            return v.Get({b, j, kv, c});
          },
          [&](int64_t i, int64_t h, AttentionRow& row, double lse) {
            const int64_t at = b * s_q + i;
            const bool raw = sum_out.given(), empty = row.top() == kHidden;
            for (int64_t c = 0; c < v.size(3); ++c) {
              const double o = row.output()[size_t(c)];
              out.Set({part, at, h, c}, raw && !empty ? o * row.sum() : o);
            }
            lse_out.Set({part, at, h}, raw ? row.top() : lse);
            if (raw) sum_out.Set({part, at, h}, row.sum());
          });
    }
  }
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    ReferenceKernel("ref.attention.standard.partials", &Launch),
    ReferenceKernel("ref.attention.gqa.partials", &Launch),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
