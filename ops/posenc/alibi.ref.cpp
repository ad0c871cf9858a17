// Reference of posenc.alibi: FP64, any strides, any float dtype.
#include "ops/posenc/alibi.h"

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::posenc_alibi;

int32_t Launch(const lz_kernel_args* args) {
  const View slopes(args->tensors[kSlopes]), out(args->tensors[kBias]);
  const int64_t s_q = out.size(1), s_kv = out.size(2);
  const bool causal = args->scalars[kCausal].value.i != 0;
  for (int64_t h = 0; h < slopes.size(0); ++h) {
    const double slope = slopes.Get({h});
    for (int64_t i = 0; i < s_q; ++i) {
      for (int64_t j = 0; j < s_kv; ++j) {
        const int64_t distance = i + s_kv - s_q - j;
        out.Set({h, i, j}, causal && distance < 0 ? ops::attention::kHidden : -slope * double(std::abs(distance)));
      }
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.posenc.alibi", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
