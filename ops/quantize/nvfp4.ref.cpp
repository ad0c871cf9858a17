// Reference of quantize.nvfp4: the tensor's or each row's largest magnitude first, then groups of 16; any strides.
#include "ops/quantize/nvfp4.h"

#include "ops/common/quantize_reference.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops;
using namespace lz::ops::quantize_nvfp4;

float LargestFinite(const View& input, const lz_tensor& t, const int64_t* begin, const int64_t* size) {
  float amax = 0;
  ForEachIndex(t.ndim, begin, size, [&](const int64_t* index) {
    const float a = std::fabs(float(input.Load(OffsetOf(t, index))));
    if (std::isfinite(a)) amax = std::fmax(amax, a);
  });
  return amax;
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &in = args->tensors[kInput], &values = args->tensors[kValues];
  const lz_tensor &scale = args->tensors[kScale], &tensor_scale = args->tensors[kTensorScale];
  const QuantShape shape = QuantShape::Of(in, 1);
  const ScaleIndex outer(shape, tensor_scale, std::nullopt), inner(shape, scale, std::nullopt);
  const View x(in), codes(values), s(scale), ts(tensor_scale);
  ForEachBlock(shape, outer, [&](const int64_t* first, const int64_t* extent) {
    const float enc = NVFP4Encoding(LargestFinite(x, in, first, extent));
    const float dec = 1.0f / enc;
    ts.Store(outer.Offset(first), dec);
    int64_t size[8], groups[8];
    std::fill_n(size, in.ndim, 1);
    std::copy_n(extent, in.ndim, groups);
    size[in.ndim - 1] = kGroup;
    groups[in.ndim - 1] /= kGroup;
    int64_t zero[8] = {};
    ForEachIndex(in.ndim, zero, groups, [&](const int64_t* at) {
      int64_t begin[8];
      for (int32_t i = 0; i < in.ndim; ++i) begin[i] = first[i] + at[i] * size[i];
      const int64_t to = inner.Offset(begin);
      s.data<uint8_t>()[to] = NVFP4Scale(RangeOfBlock(x, in, begin, size).amax(), enc);
      StoreBlock(kNVFP4, x, in, codes, values, begin, size, {.scale = ScaleValue(s, to), .tensor_scale = dec});
    });
  });
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.quantize.nvfp4", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
