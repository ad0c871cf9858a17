// The scales and zero points of quantized weights as f32, for the kernels of mlp.linear.quantized. Include only from
// files that Highway compiles per target (after hwy/highway.h).
#if defined(LZ_KERNELS_GEMM_QUANTIZED_SCALES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_GEMM_QUANTIZED_SCALES_H_
#undef LZ_KERNELS_GEMM_QUANTIZED_SCALES_H_
#else
#define LZ_KERNELS_GEMM_QUANTIZED_SCALES_H_
#endif

#include <algorithm>

#include "kernels/launch.h"
#include "kernels/simd.h"
#include "ops/mlp/linear/quantized.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::quantized {
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;

// The values of 1-byte scales.
struct ByteScales {
  ByteScales() {
    for (int byte = 0; byte < 256; ++byte) {
      e4m3[byte] = F8E4M3ToFloat(uint8_t(byte));
      e8m0[byte] = F8E8M0ToFloat(uint8_t(byte));
    }
  }
  static const float* Of(DType type) {
    static const ByteScales scales;
    return type == DType::kF8E4M3 ? scales.e4m3 : scales.e8m0;
  }
  float e4m3[256], e8m0[256];
};

constexpr int64_t kUnit = 16;  // values of a row that the GEMV kernels process with one scale

// Scales and zero points of one row of weights, by group of values.
struct RowScales {
  explicit RowScales(const lz_kernel_args* args, int64_t row) {
    const lz_tensor &scale = args->tensors[kWeightScale], &zero = args->tensors[kZeroPoint];
    const lz_tensor &outer = args->tensors[kTensorScale], &weight = args->tensors[kWeight];
    const int64_t k = args->tensors[kInput].shape[args->tensors[kInput].ndim - 1];
    const int64_t at = scale.shape[0] > 0 ? row / (weight.shape[0] / scale.shape[0]) : 0;
    type = DTypeOf(scale);
    data = Data<const char>(scale) + at * scale.strides[0] * ByteSize(type);
    stride = scale.strides[1];
    group = std::max<int64_t>(1, scale.shape[1] > 0 ? k / scale.shape[1] : k);
    if (Given(zero)) {
      zeros = Data<const int32_t>(zero) + at * zero.strides[0];
      zero_stride = zero.strides[1];
    }
    if (ByteSize(type) == 1) bytes = ByteScales::Of(type);
    const int64_t format = args->scalars[kFormat].value.i;
    if (format == kMXFP4 || format == kNVFP4) factor = 0.5f;  // kE2M1 is doubled
    if (Given(outer)) {
      factor *= Data<const float>(outer)[outer.ndim > 0 && outer.shape[0] > 1 ? row * outer.strides[0] : 0];
    }
  }

  // Calls body(load), where load(at) is the stored scale at that place.
  template <class Body>
  HWY_INLINE auto WithLoad(Body&& body) const {
    if (bytes) return body([this](int64_t at) { return bytes[static_cast<uint8_t>(data[at])]; });
    if (type == DType::kF32) return body([this](int64_t at) { return reinterpret_cast<const float*>(data)[at]; });
    const auto* halves = reinterpret_cast<const uint16_t*>(data);
    if (type == DType::kBF16) return body([halves](int64_t at) { return BF16ToFloat(halves[at]); });
    return body([halves](int64_t at) { return F16ToFloat(halves[at]); });
  }

  // out[i] = value(group of unit `first` + i). Groups of one and two units are common and have loops of their own.
  template <class Value>
  HWY_INLINE void OfUnits(int64_t first, int64_t count, float* out, const Value& value) const {
    const int64_t units = group / kUnit;
    int64_t index = first == 0 ? 0 : first / units, left = (index + 1) * units - first, i = 0;
    if (units == 1) {
      for (; i < count; ++i) out[i] = value(index + i);
    } else if (units == 2 && left == 2) {
      for (; i + 2 <= count; i += 2) out[i] = out[i + 1] = value(index++);
    }
    for (; i < count; ++index, left = units) {
      const float v = value(index);
      for (const int64_t end = std::min(i + left, count); i < end; ++i) out[i] = v;
    }
  }

  float Scale(int64_t index) const {
    return WithLoad([&](auto load) { return load(index * stride) * factor; });
  }
  float Zero(int64_t index) const { return zeros ? float(zeros[index * zero_stride]) : 0.0f; }

  // out[i] = the scale of unit `first` + i, in groups of whole units.
  void ScalesOfUnits(int64_t first, int64_t count, float* out) const {
    WithLoad([&](auto load) { OfUnits(first, count, out, [&](int64_t i) { return load(i * stride) * factor; }); });
  }
  void ZerosOfUnits(int64_t first, int64_t count, float* out) const {
    OfUnits(first, count, out, [&](int64_t i) { return Zero(i); });
  }

  DType type;
  const char* data;
  const float* bytes = nullptr;  // the values of 1-byte scales
  const int32_t* zeros = nullptr;
  int64_t stride, zero_stride = 0, group;  // `group`: values with one scale
  float factor = 1;
};

}  // namespace lz::HWY_NAMESPACE::quantized
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
