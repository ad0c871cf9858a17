// Reference of attention.merge.partials: FP64, any strides, any float dtype.
#include "ops/attention/merge_partials.h"

#include <cmath>
#include <vector>

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_merge_partials;
using ops::attention::kHidden;

class Merger {
 public:
  explicit Merger(const lz_kernel_args* args)
      : o_(args->tensors[kPartials]),
        s_(args->tensors[kPartLse]),
        l_(args->tensors[kRowSum]),
        sinks_(args->tensors[kSinks]),
        out_(args->tensors[kOutput]),
        lse_(args->tensors[kLse]) {}

  void Row(int64_t n, int64_t h) const {
    const int64_t splits = o_.size(0), d = o_.size(3);
    double top = kHidden;  // NaN after the first part whose value is NaN
    for (int64_t t = 0; t < splits; ++t) {
      const double s = s_.Get({t, n, h});
      if (!std::isnan(top) && !(s <= top)) top = s;
    }
    const double sink = sinks_.given() ? sinks_.Get({h}) : kHidden;
    std::vector<double> sums(size_t(d), 0.0);
    double total = 0;
    for (int64_t t = 0; t < splits && top != kHidden; ++t) {
      const double s = s_.Get({t, n, h});
      if (s == kHidden) continue;
      const double weight = std::exp(s - top);
      total += weight * (l_.given() ? l_.Get({t, n, h}) : 1.0);
      for (int64_t c = 0; c < d; ++c) sums[size_t(c)] += weight * o_.Get({t, n, h, c});
    }
    lse_.Set({n, h}, top == kHidden ? kHidden : top + std::log(total));
    for (int64_t c = 0; c < d; ++c) out_.Set({n, h, c}, Finish(sums[size_t(c)], total, top, sink));
  }

 private:
  static double Finish(double sum, double total, double top, double sink) {
    if (top == kHidden || (sink == -kHidden && std::isfinite(top))) return 0;
    const double peak = std::isnan(sink) || sink > top ? sink : top, rest = std::exp(top - peak);
    return sum * rest / (total * rest + (sink == kHidden ? 0.0 : std::exp(sink - peak)));
  }

  View o_, s_, l_, sinks_, out_, lse_;
};

int32_t Launch(const lz_kernel_args* args) {
  const Merger merger(args);
  for (int64_t n = 0; n < args->axes[kN]; ++n) {
    for (int64_t h = 0; h < args->axes[kH]; ++h) merger.Row(n, h);
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.attention.merge.partials", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
