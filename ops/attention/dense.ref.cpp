// Reference of attention.{standard,gqa}.{prefill,decode}: FP64, any strides, any float dtype; output may alias query
// when their rows are the same. Takes every argument but dropout_p.
#include "ops/attention/dense.h"

#include <algorithm>

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_dense;
using ops::attention::AttentionRow;
using ops::attention::Dot;
using ops::attention::kHidden;
using ops::attention::Softcap;

// A mask that may lack leading axes, and whose axes may be 1.
class Mask4 {
 public:
  explicit Mask4(const lz_tensor& t) : view_(t), given_(view_.given()), boolean_(view_.dtype() == DType::kBool) {
    for (int i = 0; i < view_.ndim(); ++i) {
      const int axis = 4 - view_.ndim() + i;
      if (view_.size(i) != 1) strides_[size_t(axis)] = view_.stride(i);
    }
  }
  // What the key adds to its logit: kHidden if it is not seen.
  double At(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!given_) return 0.0;
    const int64_t at = b * strides_[0] + h * strides_[1] + i * strides_[2] + j * strides_[3];
    if (boolean_) return view_.LoadInt(at) != 0 ? 0.0 : kHidden;
    return view_.Load(at);
  }

 private:
  View view_;
  bool given_, boolean_;
  std::array<int64_t, 4> strides_ = {};
};

int32_t Launch(const lz_kernel_args* args) {
  const View q(args->tensors[kQuery]), k(args->tensors[kKey]), v(args->tensors[kValue]);
  const View sinks(args->tensors[kSinks]), slopes(args->tensors[kAlibiSlopes]);
  const View out(args->tensors[kOutput]), lse_out(args->tensors[kLse]);
  const Mask4 mask(args->tensors[kAttnMask]);
  const lz_scalar* s = args->scalars;
  const double scale = s[kScale].value.f, cap = s[kSoftcap].given ? s[kSoftcap].value.f : 0.0;
  const int64_t window = s[kWindow].given ? s[kWindow].value.i : -1;
  const int64_t s_q = q.size(1), h_q = q.size(2), d_qk = q.size(3), s_kv = k.size(1), h_kv = k.size(2), d_v = v.size(3);
  AttentionRow row(d_v);
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t h = 0; h < h_q; ++h) {
      const int64_t kv = h / (h_q / h_kv);
      const double slope = slopes.given() ? slopes.Get({h}) : 0.0;
      for (int64_t i = 0; i < s_q; ++i) {
        const int64_t p = i + s_kv - s_q;
        const int64_t end = s[kCausal].value.i || window > 0 ? std::max<int64_t>(p + 1, 0) : s_kv;
        const int64_t begin = window > 0 ? std::clamp<int64_t>(p - window + 1, 0, end) : 0;
        const int64_t q_at = b * q.stride(0) + i * q.stride(1) + h * q.stride(2);
        const double lse = row.Attend(
            begin, end, sinks.given() ? sinks.Get({h}) : kHidden,
            [&](int64_t j) {
              const double bias = mask.At(b, h, i, j);
              if (bias == kHidden) return kHidden;
              const int64_t k_at = b * k.stride(0) + j * k.stride(1) + kv * k.stride(2);
              const double z = Softcap(scale * Dot(q, q_at, k, k_at, d_qk), cap);
              return (slopes.given() ? z - slope * double(std::abs(p - j)) : z) + bias;
            },
            [&](int64_t j, int64_t c) {
              return v.Get({b, j, kv, c});
            });
        for (int64_t c = 0; c < d_v; ++c) out.Set({b, i, h, c}, row.output()[size_t(c)]);
        if (lse_out.given()) lse_out.Set({b, h, i}, lse);
      }
    }
  }
  return 0;
}

constexpr auto kAccepts = std::to_array<std::string_view>(
    {"causal", "scale", "attn_mask", "window", "softcap", "sinks", "alibi_slopes", "return_lse"});

constexpr KernelSpec Spec(std::string_view id, std::string_view operation) {
  return {.id = id,
          .operation = operation,
          .dtypes = kFloats,
          .accepts = kAccepts,
          .strides = Strides::kAny,
          .priority = 0,
          .deterministic = true,
          .reference = true,
          .launch = &Launch};
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("ref.attention.standard.decode", "attention.standard.decode"),
    Spec("ref.attention.standard.prefill", "attention.standard.prefill"),
    Spec("ref.attention.gqa.decode", "attention.gqa.decode"),
    Spec("ref.attention.gqa.prefill", "attention.gqa.prefill"),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
