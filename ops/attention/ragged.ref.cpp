// Reference of attention.{standard,gqa}.prefill.ragged: FP64, any strides, any float dtype.
#include "ops/attention/ragged.h"

#include <algorithm>

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_ragged;
using ops::attention::AttentionRow;
using ops::attention::Dot;
using ops::attention::kHidden;
using ops::attention::Softcap;

bool LengthsWithin(const View& offsets, int64_t bound) {
  for (int64_t s = 0; s + 1 < offsets.size(0); ++s) {
    if (offsets.GetInt({s + 1}) - offsets.GetInt({s}) > bound) return false;
  }
  return true;
}

// Rows [first_q, end_q) against keys [first_kv, first_kv + n_kv): one sequence, or the padding with n_kv = 0.
void Sequence(const lz_kernel_args* args, int64_t first_q, int64_t end_q, int64_t first_kv, int64_t n_kv) {
  const View q(args->tensors[kQuery]), k(args->tensors[kKey]), v(args->tensors[kValue]);
  const View sinks(args->tensors[kSinks]), slopes(args->tensors[kAlibiSlopes]);
  const View out(args->tensors[kOutput]), lse_out(args->tensors[kLse]);
  const lz_scalar* s = args->scalars;
  const double scale = s[kScale].value.f, cap = s[kSoftcap].given ? s[kSoftcap].value.f : 0.0;
  const int64_t window = s[kWindow].given ? s[kWindow].value.i : -1;
  const int64_t h_q = q.size(1), d_qk = q.size(2), h_kv = k.size(1), d_v = v.size(2);
  AttentionRow row(d_v);
  for (int64_t h = 0; h < h_q; ++h) {
    const int64_t kv = h / (h_q / h_kv);
    for (int64_t i = first_q; i < end_q; ++i) {
      const int64_t p = i - end_q + n_kv;
      const int64_t end = s[kCausal].value.i || window > 0 ? std::max<int64_t>(p + 1, 0) : n_kv;
      const int64_t begin = window > 0 ? std::clamp<int64_t>(p - window + 1, 0, end) : 0;
      const int64_t q_at = i * q.stride(0) + h * q.stride(1);
      const double lse = row.Attend(
          begin, end, sinks.given() ? sinks.Get({h}) : kHidden,
          [&](int64_t j) {
            const int64_t k_at = (first_kv + j) * k.stride(0) + kv * k.stride(1);
            const double z = Softcap(scale * Dot(q, q_at, k, k_at, d_qk), cap);
            return slopes.given() ? z - slopes.Get({h}) * double(std::abs(p - j)) : z;
          },
          [&](int64_t j, int64_t c) {
            return v.Get({first_kv + j, kv, c});
          });
      for (int64_t c = 0; c < d_v; ++c) out.Set({i, h, c}, row.output()[size_t(c)]);
      if (lse_out.given()) lse_out.Set({i, h}, lse);
    }
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const View cu_q(args->tensors[kCuSeqlensQ]), cu_kv(args->tensors[kCuSeqlensKV]);
  const int64_t total_q = args->tensors[kQuery].shape[0], total_kv = args->tensors[kKey].shape[0];
  const lz_scalar &max_q = args->scalars[kMaxSeqlenQ], &max_kv = args->scalars[kMaxSeqlenKV];
  if (!ops::attention::OffsetsValid(cu_q, total_q) || !ops::attention::OffsetsValid(cu_kv, total_kv)) return 1;
  if (max_q.given && !LengthsWithin(cu_q, max_q.value.i)) return 1;
  if (max_kv.given && !LengthsWithin(cu_kv, max_kv.value.i)) return 1;
  int64_t end_q = 0;
  for (int64_t s = 0; s + 1 < cu_q.size(0); ++s) {
    const int64_t first_q = end_q, first_kv = cu_kv.GetInt({s});
    end_q = cu_q.GetInt({s + 1});
    Sequence(args, first_q, end_q, first_kv, cu_kv.GetInt({s + 1}) - first_kv);
  }
  Sequence(args, end_q, total_q, 0, 0);
  return 0;
}

constexpr KernelSpec Spec(std::string_view id, std::string_view operation) {
  return {.id = id,
          .operation = operation,
          .dtypes = kFloats,
          .accepts = kAcceptsAll,
          .strides = Strides::kAny,
          .priority = 0,
          .deterministic = true,
          .reference = true,
          .launch = &Launch};
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("ref.attention.standard.prefill.ragged", "attention.standard.prefill.ragged"),
    Spec("ref.attention.gqa.prefill.ragged", "attention.gqa.prefill.ragged"),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
