// Reference of attention.merge: FP64, any strides, any float dtype; outputs may alias either part.
#include "ops/attention/merge.h"

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_merge;

int32_t Launch(const lz_kernel_args* args) {
  const View v_a(args->tensors[kVA]), s_a(args->tensors[kSA]), v_b(args->tensors[kVB]), s_b(args->tensors[kSB]);
  const View sinks(args->tensors[kSinks]), out(args->tensors[kOutput]), lse_out(args->tensors[kLse]);
  const int64_t d = v_a.size(2);
  ops::attention::AttentionRow row(d);
  for (int64_t n = 0; n < v_a.size(0); ++n) {
    for (int64_t h = 0; h < v_a.size(1); ++h) {
      // Each part is one key whose logit is its lse.
      const double lse = row.Attend(
          0, 2, sinks.given() ? sinks.Get({h}) : ops::attention::kHidden,
          [&](int64_t part) {
            return (part == 0 ? s_a : s_b).Get({n, h});
          },
          [&](int64_t part, int64_t c) {
            return (part == 0 ? v_a : v_b).Get({n, h, c});
          });
      for (int64_t c = 0; c < d; ++c) out.Set({n, h, c}, row.output()[size_t(c)]);
      lse_out.Set({n, h}, lse);
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.attention.merge", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
