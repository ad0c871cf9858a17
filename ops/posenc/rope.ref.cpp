// Reference of posenc.rope: FP64, any strides, any float dtype; output may alias input.
#include "ops/posenc/rope.h"

#include "core/view.h"
#include "ops/common/reference.h"
#include "ops/common/rope.h"

namespace {
using namespace lz;
using namespace lz::ops::posenc_rope;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &cos_tensor = args->tensors[kCos], &sin_tensor = args->tensors[kSin];
  const View x(args->tensors[kInput]), cos(cos_tensor), sin(sin_tensor), out(args->tensors[kOutput]);
  const bool interleaved = args->scalars[kInterleaved].value.i != 0;
  const double sign = args->scalars[kInverse].value.i != 0 ? -1.0 : 1.0;
  const int64_t r = args->scalars[kRotaryDim].value.i, width = cos.size(-1);
  const TableRows rows(args);
  if (!rows.AllInRange()) return kPositionOutOfRange;
  for (int64_t b = 0; b < x.size(kB); ++b) {
    for (int64_t s = 0; s < x.size(kS); ++s) {
      const int64_t cos_row = rows.Offset(cos_tensor, b, s), sin_row = rows.Offset(sin_tensor, b, s);
      for (int64_t h = 0; h < x.size(kH); ++h) {
        for (int64_t i = 0; i < r / 2; ++i) {
          const Pair p = PairAt(i, r, width, interleaved);
          const double xj = x.Get({b, s, h, p.j}), xk = x.Get({b, s, h, p.k});
          const auto table = [](const View& t, int64_t row, int64_t column) {
            return t.Load(row + column * t.stride(-1));
          };
          out.Set({b, s, h, p.j}, xj * table(cos, cos_row, p.tj) - xk * sign * table(sin, sin_row, p.tj));
          out.Set({b, s, h, p.k}, xk * table(cos, cos_row, p.tk) + xj * sign * table(sin, sin_row, p.tk));
        }
        for (int64_t i = r; i < x.size(kD); ++i) out.Set({b, s, h, i}, x.Get({b, s, h, i}));
      }
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.posenc.rope", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
