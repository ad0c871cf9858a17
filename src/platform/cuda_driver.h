// CUDA's driver library at run time: opened on first use, never linked, never closed. Where there is none, the
// functions say so and change nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "layerzero/c_abi.h"

namespace lz {

// Functions of the driver, under its own names; all return 0 for success.
struct CudaDriver {
  struct Uuid {
    unsigned char bytes[16];
  };
  using Context = void*;

  int (*cuInit)(unsigned) = nullptr;
  int (*cuDriverGetVersion)(int*) = nullptr;
  int (*cuDeviceGetCount)(int*) = nullptr;
  int (*cuDeviceGet)(int*, int) = nullptr;
  int (*cuDeviceGetName)(char*, int, int) = nullptr;
  int (*cuDeviceGetUuid)(Uuid*, int) = nullptr;
  int (*cuDeviceTotalMem)(size_t*, int) = nullptr;
  int (*cuDeviceGetAttribute)(int*, int, int) = nullptr;
  int (*cuGetErrorString)(int, const char**) = nullptr;
  int (*cuCtxGetDevice)(int*) = nullptr;
  int (*cuCtxPushCurrent)(Context) = nullptr;
  int (*cuCtxPopCurrent)(Context*) = nullptr;
  int (*cuDevicePrimaryCtxRetain)(Context*, int) = nullptr;
  int (*cuStreamIsCapturing)(void*, int*) = nullptr;

  std::string ErrorText(const char* function, int error) const;
};

// nullptr without a usable driver library; `why` (may be nullptr) then says why in one phrase. Does not initialise it.
const CudaDriver* FindCudaDriver(std::string* why = nullptr);

// The ordinal of the calling thread's current device; -1: none, or no driver.
LZ_EXPORT int CurrentCudaDevice();

// Whether work on `stream` is being recorded into a graph. A driver that does not answer counts as yes: what is not
// known to be safe in a capture does not run in one. The legacy stream (nullptr) cannot be captured.
bool CudaStreamIsCapturing(void* stream);

// Makes a device's primary context current on this thread while it lives; does nothing when the device is current.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device);
  ~CudaDeviceGuard();
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;
  bool ok() const { return ok_; }

 private:
  bool ok_ = true, pushed_ = false;
};

}  // namespace lz
