// What every own CUDA kernel needs: rows that hold for all of them, vectors, rows of strided tensors, launch helpers.
// Dispatch makes the tensors' device current around a launch. Host code of .cu files keeps to C and to headers: of the
// C++ runtime it needs the guards of static variables alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "core/kernel.h"
#include "kernels/launch.h"

namespace lz {

// Compute capabilities that run the compiled code, as device.sm counts them (the build passes LZ_CUDA_SMS).
inline constexpr auto kCompiledSms = std::to_array<int64_t>({LZ_CUDA_SMS});
// A driver serves a linked runtime of its own major version and of older ones.
inline constexpr int64_t kNeededCuda = CUDART_VERSION / 1000 * 1000;

// The rows that every kernel of the library has.
inline constexpr Constraint kOnCompiledSm = {
    .field = "device.sm", .rel = Rel::kInSet, .set = kCompiledSms, .code = ReasonCode::kNotBuilt};
inline constexpr Constraint kOnDriver = {.field = "device.cuda_version", .rel = Rel::kGe, .operand = kNeededCuda};

// The priority of a kernel that no device has measured yet: below torch's rows.
inline constexpr int32_t kNotYetMeasured = 5;

inline constexpr int64_t kFirstSmWithClusters = 90;
inline constexpr int kWarp = 32;
inline constexpr int64_t kMaxGridY = 65535;
inline constexpr int kVectorBytes = 16;  // of one load

// kN elements that are read and written at once, 16 bytes at most for each access.
template <class T, int kN>
struct alignas(sizeof(T) * kN < kVectorBytes ? sizeof(T) * kN : kVectorBytes) Vector {
  T v[kN];
};
template <class T>
inline constexpr int kLanes = kVectorBytes / int(sizeof(T));  // elements of a full vector

// Where row r of [..., n] begins, on the device: elements from the first, axes that one stride expresses are folded.
struct DeviceRows {
  int32_t n = 0;
  int64_t size[8];  // innermost first
  int64_t stride[8];

  DeviceRows() = default;
  explicit DeviceRows(const lz_tensor& t) {
    for (int i = t.ndim - 2; i >= 0; --i) {
      if (t.shape[i] == 1) continue;
      if (n > 0 && t.strides[i] == stride[n - 1] * size[n - 1]) {
        size[n - 1] *= t.shape[i];
      } else {
        size[n] = t.shape[i];
        stride[n++] = t.strides[i];
      }
    }
  }
#ifdef __CUDACC__
  __device__ int64_t operator[](int64_t row) const {
    if (n == 0) return 0;
    int64_t offset = 0;
    for (int i = 0; i + 1 < n; ++i) {
      offset += (row % size[i]) * stride[i];
      row /= size[i];
    }
    return offset + row * stride[n - 1];
  }
#endif
  // Whether every row begins at a multiple of `elements`.
  bool Aligned(int64_t elements) const {
    for (int i = 0; i < n; ++i) {
      if (stride[i] % elements != 0) return false;
    }
    return true;
  }
  // True if rows of `width` elements follow each other without gaps.
  bool Dense(int64_t width) const { return n == 0 || (n == 1 && stride[0] == width); }
};

// Where element i of a tensor is, counted over all its axes.
inline DeviceRows ElementsOf(const lz_tensor& t) {
  int64_t shape[9], strides[9];
  for (int i = 0; i <= t.ndim; ++i) {
    shape[i] = i < t.ndim ? t.shape[i] : 1;
    strides[i] = i < t.ndim ? t.strides[i] : 1;
  }
  lz_tensor rows = t;
  rows.ndim = t.ndim + 1;
  rows.shape = shape;
  rows.strides = strides;
  return DeviceRows(rows);
}

// Whether every address is a multiple of 16 bytes; absent tensors are.
template <class... P>
bool Aligned(P... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) | ...) & (kVectorBytes - 1)) == 0;
}

// What a launch function returns for an error of the runtime: its number above the codes with a meaning of their own.
inline int32_t CudaCode(cudaError_t error) { return error == cudaSuccess ? LZ_LAUNCH_DONE : 1000 + int32_t(error); }
// After <<<>>>. Clears the error: it is this launch's, not the next one's.
inline int32_t Launched() { return CudaCode(cudaGetLastError()); }

// Lets a kernel have `bytes` of dynamic shared memory; false on a device with less (99 KiB a block on sm_86 and sm_89).
inline bool AllowShared(const void* kernel, int bytes) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

// body(T()) for f32, f16 and bf16; a row keeps other dtypes away.
template <class Body>
int32_t WithCudaFloat(DType type, Body&& body) {
  switch (type) {
    case DType::kF32: return body(float());
    case DType::kF16: return body(__half());
    case DType::kBF16: return body(__nv_bfloat16());
    default: return CudaCode(cudaErrorInvalidValue);
  }
}

#ifdef __CUDACC__
__device__ inline float ToFloat(float v) { return v; }
__device__ inline float ToFloat(__half v) { return __half2float(v); }
__device__ inline float ToFloat(__nv_bfloat16 v) { return __bfloat162float(v); }
// The nearest T, ties to even.
template <class T>
__device__ T FromFloat(float v);
template <>
__device__ inline float FromFloat<float>(float v) {
  return v;
}
template <>
__device__ inline __half FromFloat<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
__device__ inline float WarpSum(float v) {
  for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}
#endif

}  // namespace lz
