// CUDA's driver library at run time: opened on first use, never linked, never closed. Without it the functions report
// that and change nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "layerzero/c_abi.h"

namespace lz {

// Functions of the driver, under its own names; all return 0 on success.
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
  int (*cuStreamSynchronize)(void*) = nullptr;
  int (*cuMemGetInfo)(size_t* free, size_t* total) = nullptr;
  int (*cuMemcpy)(uint64_t to, uint64_t from, size_t bytes) = nullptr;
  // May be nullptr: drivers from 11.3 on have it. Its last three arguments may be nullptr.
  int (*cuStreamGetCaptureInfo)(void*, int*, uint64_t* id, void*, void*, size_t*) = nullptr;
  // May be nullptr. Sets how captures restrict this thread; the mode before is written to where the new one was.
  int (*cuThreadExchangeStreamCaptureMode)(int*) = nullptr;

  std::string ErrorText(const char* function, int error) const;
};

// nullptr without a usable driver library; `why` (may be nullptr) then has the reason in one phrase. Does not
// initialize it.
const CudaDriver* FindCudaDriver(std::string* why = nullptr);

// The ordinal of the calling thread's current device; -1: none, or no driver.
LZ_EXPORT int CurrentCudaDevice();

// Bytes that the driver can allocate on a device; -1 if it is not this thread's current one, or there is no driver.
int64_t FreeCudaBytes(int device);

// True if work on `stream` is being recorded into a graph. If the driver does not answer, true is assumed: what is not
// known to be safe in a capture does not run in one. The legacy stream (nullptr) cannot be captured.
// `*capture`: the number of that capture, which no other one of the process has; 0 without one.
bool CudaStreamIsCapturing(void* stream, uint32_t* capture = nullptr);

// Waits for the work on `stream` of the current device. Returns the driver's text of an error that this work, or any
// work before it, made; empty: none, or no driver.
std::string CudaStreamError(void* stream);

// Copies memory of the current device to the host after the work on `stream`; waits for both. False: it could not.
bool CopyFromCuda(void* stream, const void* from, size_t bytes, void* to);

// Makes a device's primary context current on this thread during its life; does nothing if the device is current.
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
