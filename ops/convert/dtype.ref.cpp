// Reference of convert: element by element through double, which represents every value of every format; any strides.
#include "ops/convert/dtype.h"

#include "core/view.h"
#include "ops/common/reference.h"
#include "ops/common/small_float.h"

namespace {
using namespace lz;
using namespace lz::ops;
using namespace lz::ops::convert_dtype;

constexpr std::array<SmallFloat, 7> kSmall = {kE4M3FN, kE5M2, kE4M3FNUZ, kE5M2FNUZ, kE2M3FN, kE3M2FN, kE2M1FN};

double Load(const View& in, int64_t at, int64_t source) {
  if (source == kAsIs) return in.Load(at);
  const auto code = uint8_t(in.LoadInt(at));
  return source == kE8M0 ? DecodeE8M0(code) : Decode(kSmall[size_t(source - kFirstFormat)], code);
}

double RoundToTF32(double v) {
  if (v == 0 || !std::isfinite(v)) return v;
  const int e = std::max(std::ilogb(v), -126);
  return std::ldexp(std::nearbyint(std::ldexp(v, 10 - e)), e - 10);
}

int32_t Launch(const lz_kernel_args* args) {
  const View in(args->tensors[kInput]), out(args->tensors[kOutput]);
  const int64_t target = args->scalars[kDType].value.i, source = args->scalars[kSource].value.i;
  const bool saturate = args->scalars[kSaturate].value.i != 0;
  const int64_t size = in.ndim() > 0 ? in.size(-1) : 1, step = in.ndim() > 0 ? in.stride(-1) : 0;
  const int64_t to_step = out.ndim() > 0 ? out.stride(-1) : 0;
  const int64_t rows = size > 0 ? in.numel() / size : 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = in.RowOffset(row), to_row = out.RowOffset(row);
    for (int64_t i = 0; i < size; ++i) {
      const double v = Load(in, from + i * step, source);
      const int64_t to = to_row + i * to_step;
      if (target >= kFirstCode) {
        out.data<uint8_t>()[to] = Encode(kSmall[size_t(target - kFirstCode)], v, saturate);
      } else {
        out.Store(to, target == kTF32 ? RoundToTF32(v) : v);
      }
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.convert", &Launch, kInputs)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
