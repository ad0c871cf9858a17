// Reference of mlp.linear.gguf.prepack: value by value, scales copied as bytes; any strides.
#include "ops/mlp/linear/gguf/prepack.h"

#include <cstring>

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear_gguf_prepack;

void PackRow(const View& weight, int64_t row, int64_t k, int64_t format, uint8_t* group) {
  const int64_t columns = kBlockColumns[size_t(format)], bytes = kBlockBytes[size_t(format)];
  for (int64_t i = 0; i < k; ++i) {
    const int64_t begin = i / columns * bytes;
    const auto byte = [&](int64_t at) { return int(uint8_t(weight.GetInt({row, begin + at}))); };
    const Parts p = FileBlock(format, byte).At(i % columns);
    const PackedPlace at(format, k, row, i);
    const auto copy_half = [&](int64_t from, int64_t to) {
      group[to] = uint8_t(byte(from)), group[to + 1] = uint8_t(byte(from + 1));
    };
    if (format == kQ8_0) {
      group[at.code] = uint8_t(p.code);
    } else {
      group[at.code] |= uint8_t((p.code & 15) << at.shift);
    }
    if (format == kQ6_K) group[at.high] |= uint8_t((p.code >> 4) << at.high_shift);
    copy_half(format == kQ6_K ? 208 : 0, at.d);
    if (at.m >= 0) copy_half(2, at.m);
    if (at.s >= 0) group[at.s] = uint8_t(p.s);
    if (at.t >= 0) group[at.t] = uint8_t(p.t);
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const View weight(args->tensors[kWeight]);
  const lz_tensor& out = args->tensors[kPacked];
  const int64_t n = weight.size(0), k = args->scalars[kK].value.i, format = args->scalars[kFormat].value.i;
  auto* to = static_cast<uint8_t*>(out.data) + out.byte_offset;
  for (int64_t group = 0; group < out.shape[0]; ++group)
    std::memset(to + group * out.strides[0], 0, size_t(out.shape[1]));
  for (int64_t row = 0; row < n; ++row) PackRow(weight, row, k, format, to + row / kGroupRows * out.strides[0]);
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.mlp.linear.gguf.prepack", &Launch, Mask(DType::kU8))};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
