// Reference of pooling.sequence: FP64, any strides, any float dtype.
#include "ops/pooling/sequence.h"

#include <vector>

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::pooling_sequence;

double Pool(const View& x, int64_t b, int64_t column, const std::vector<int64_t>& valid, int64_t mode) {
  if (valid.empty()) return 0;
  if (mode == kFirst) return x.Get({b, valid.front(), column});
  if (mode == kLast) return x.Get({b, valid.back(), column});
  double sum = 0, max = x.Get({b, valid.front(), column});
  for (const int64_t i : valid) {
    const double v = x.Get({b, i, column});
    sum += v;
    if (v > max || std::isnan(v)) max = v;
  }
  return mode == kMax ? max : sum / double(valid.size());
}

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), mask(args->tensors[kMask]), lengths(args->tensors[kLengths]);
  const View out(args->tensors[kOutput]);
  const int64_t s = x.size(1);
  for (int64_t b = 0; lengths.given() && b < x.size(0); ++b) {
    if (lengths.GetInt({b}) < 0 || lengths.GetInt({b}) > s) return LZ_LAUNCH_INVALID_DATA;
  }
  for (int64_t b = 0; b < x.size(0); ++b) {
    std::vector<int64_t> valid;
    for (int64_t i = 0; i < s; ++i) {
      if (lengths.given() ? i < lengths.GetInt({b}) : !mask.given() || mask.GetInt({b, i}) != 0) valid.push_back(i);
    }
    for (int64_t column = 0; column < x.size(2); ++column) {
      out.Set({b, column}, Pool(x, b, column, valid, args->scalars[kMode].value.i));
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.pooling.sequence", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
