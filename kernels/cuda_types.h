// Elements of any dtype on the device, as float: for kernels whose tensors have dtypes of their own.
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda.h"

namespace lz {

#ifdef __CUDACC__
__device__ inline float F8ToFloat(uint8_t code, __nv_fp8_interpretation_t kind) {
  const __half_raw raw = __nv_cvt_fp8_to_halfraw(code, kind);
  return __half2float(__half(raw));
}

// Element i. e8m0 is a power of two; integers are what they are.
__device__ inline float LoadFloat(const void* data, int64_t i, DType type) {
  switch (type) {
    case DType::kF64: return float(static_cast<const double*>(data)[i]);
    case DType::kF32: return static_cast<const float*>(data)[i];
    case DType::kF16: return __half2float(static_cast<const __half*>(data)[i]);
    case DType::kBF16: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case DType::kF8E4M3: return F8ToFloat(static_cast<const uint8_t*>(data)[i], __NV_E4M3);
    case DType::kF8E5M2: return F8ToFloat(static_cast<const uint8_t*>(data)[i], __NV_E5M2);
    case DType::kF8E8M0: {
      const uint8_t code = static_cast<const uint8_t*>(data)[i];
      return code == 255 ? nanf("") : __uint_as_float(code == 0 ? 0x400000u : uint32_t(code) << 23);
    }
    case DType::kI8: return float(static_cast<const int8_t*>(data)[i]);
    case DType::kU8: return float(static_cast<const uint8_t*>(data)[i]);
    default: return nanf("");
  }
}

// The same in FP64, exact for integers of 32 bits too.
__device__ inline double LoadDouble(const void* data, int64_t i, DType type) {
  switch (type) {
    case DType::kF64: return static_cast<const double*>(data)[i];
    case DType::kI32: return double(static_cast<const int32_t*>(data)[i]);
    case DType::kI64: return double(static_cast<const int64_t*>(data)[i]);
    default: return double(LoadFloat(data, i, type));
  }
}

// The same without the dtypes of quantized data: a fraction of the instructions.
__device__ inline float LoadFloating(const void* data, int64_t i, DType type) {
  if (type == DType::kF32) return static_cast<const float*>(data)[i];
  if (type == DType::kF64) return float(static_cast<const double*>(data)[i]);
  return type == DType::kF16 ? __half2float(static_cast<const __half*>(data)[i])
                             : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
}
__device__ inline void StoreFloating(void* data, int64_t i, DType type, float v) {
  if (type == DType::kF32) {
    static_cast<float*>(data)[i] = v;
  } else if (type == DType::kF64) {
    static_cast<double*>(data)[i] = v;
  } else if (type == DType::kF16) {
    static_cast<__half*>(data)[i] = __float2half_rn(v);
  } else {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(v);
  }
}

// Rounded to nearest even. 8-bit floats saturate, infinities too; int8 to +-127, with 0 for NaN.
__device__ inline void StoreFloat(void* data, int64_t i, DType type, float v) {
  switch (type) {
    case DType::kF64: static_cast<double*>(data)[i] = v; return;
    case DType::kF32: static_cast<float*>(data)[i] = v; return;
    case DType::kF16: static_cast<__half*>(data)[i] = __float2half_rn(v); return;
    case DType::kBF16: static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(v); return;
    case DType::kF8E4M3: static_cast<uint8_t*>(data)[i] = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3); return;
    case DType::kF8E5M2: static_cast<uint8_t*>(data)[i] = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E5M2); return;
    case DType::kI8:
      static_cast<int8_t*>(data)[i] = isnan(v) ? int8_t(0) : int8_t(fminf(fmaxf(rintf(v), -127.0f), 127.0f));
      return;
    default: return;
  }
}

// Element i of int32 or int64 numbers.
__device__ inline int64_t LoadIndex(const void* data, int64_t i, bool wide) {
  return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
}
#endif  // __CUDACC__

}  // namespace lz
