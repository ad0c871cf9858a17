// What every own CUDA kernel needs on the host side: the SMs that its code was compiled for, and the tensors' device.
// Host code of .cu files keeps to C and to headers: of the C++ runtime it needs the guards of static variables alone.
#pragma once

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
    .field = "device.sm", .rel = Rel::kInSet, .set = kCompiledSms, .code = ReasonCode::kDeviceCapabilityUnsupported};
inline constexpr Constraint kOnDriver = {.field = "device.cuda_version", .rel = Rel::kGe, .operand = kNeededCuda};

// Makes the tensor's device current for one launch.
class OnDevice {
 public:
  explicit OnDevice(const lz_tensor& t) {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != t.device.id) {
      error_ = cudaSetDevice(t.device.id);
      changed_ = error_ == cudaSuccess;
    }
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

// Where row r of [..., n] begins, on the device: elements from the first, axes that one stride expresses are folded.
struct DeviceRows {
  int32_t n = 0;
  int64_t size[8];  // innermost first
  int64_t stride[8];

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
};

}  // namespace lz
