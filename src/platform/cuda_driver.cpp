#include "platform/cuda_driver.h"

#include <dlfcn.h>

#include <array>
#include <atomic>

namespace lz {
namespace {

struct Found {
  CudaDriver driver;
  std::string why;  // empty: nothing is missing
};

const Found& Search() {
  static const Found& found = *[] {
    auto* f = new Found;  // never closed: the driver keeps threads
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      // An installed driver that does not load reports why; the loader's text for a missing file would mislead.
      const std::string text = dlerror();
      const bool absent = text.find("No such file") != std::string::npos;
      f->why = absent ? "no NVIDIA driver: libcuda.so.1 was not found" : "the NVIDIA driver does not load: " + text;
      return f;
    }
    CudaDriver& d = f->driver;
    const auto load = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      return *function != nullptr;
    };
    const bool complete =
        load("cuInit", &d.cuInit) && load("cuDriverGetVersion", &d.cuDriverGetVersion) &&
        load("cuDeviceGetCount", &d.cuDeviceGetCount) && load("cuDeviceGet", &d.cuDeviceGet) &&
        load("cuDeviceGetName", &d.cuDeviceGetName) && load("cuDeviceGetUuid", &d.cuDeviceGetUuid) &&
        load("cuDeviceTotalMem_v2", &d.cuDeviceTotalMem) && load("cuDeviceGetAttribute", &d.cuDeviceGetAttribute) &&
        load("cuGetErrorString", &d.cuGetErrorString) && load("cuCtxGetDevice", &d.cuCtxGetDevice) &&
        load("cuCtxPushCurrent_v2", &d.cuCtxPushCurrent) && load("cuCtxPopCurrent_v2", &d.cuCtxPopCurrent) &&
        load("cuDevicePrimaryCtxRetain", &d.cuDevicePrimaryCtxRetain) &&
        load("cuStreamIsCapturing", &d.cuStreamIsCapturing) && load("cuStreamSynchronize", &d.cuStreamSynchronize) &&
        load("cuMemcpy", &d.cuMemcpy) && load("cuMemGetInfo_v2", &d.cuMemGetInfo);
    load("cuStreamGetCaptureInfo_v2", &d.cuStreamGetCaptureInfo);
    load("cuThreadExchangeStreamCaptureMode", &d.cuThreadExchangeStreamCaptureMode);
    if (!complete) f->why = "libcuda.so.1 lacks functions that every driver from 410 on has";
    return f;
  }();
  return found;
}

// Primary contexts by ordinal, retained once and kept: torch and the CUDA runtime use the same ones.
constexpr int kMaxDevices = 64;
CudaDriver::Context PrimaryContext(const CudaDriver& driver, int device) {
  static std::array<std::atomic<CudaDriver::Context>, kMaxDevices> contexts{};
  if (device < 0 || device >= kMaxDevices) return nullptr;
  CudaDriver::Context context = contexts[size_t(device)].load(std::memory_order_acquire);
  if (context) return context;
  int handle = 0;
  if (driver.cuInit(0) != 0 || driver.cuDeviceGet(&handle, device) != 0) return nullptr;
  if (driver.cuDevicePrimaryCtxRetain(&context, handle) != 0) return nullptr;
  contexts[size_t(device)].store(context, std::memory_order_release);
  return context;
}

}  // namespace

std::string CudaDriver::ErrorText(const char* function, int error) const {
  const char* text = nullptr;
  cuGetErrorString(error, &text);
  return std::string(function) + ": " + (text ? text : "error " + std::to_string(error));
}

const CudaDriver* FindCudaDriver(std::string* why) {
  const Found& found = Search();
  if (why) *why = found.why;
  return found.why.empty() ? &found.driver : nullptr;
}

int CurrentCudaDevice() {
  const CudaDriver* driver = FindCudaDriver();
  int device = -1;
  return driver && driver->cuCtxGetDevice(&device) == 0 ? device : -1;
}

int64_t FreeCudaBytes(int device) {
  size_t free = 0, total = 0;
  if (device < 0 || CurrentCudaDevice() != device) return -1;
  return FindCudaDriver()->cuMemGetInfo(&free, &total) == 0 ? int64_t(free) : -1;
}

bool CudaStreamIsCapturing(void* stream, uint32_t* capture) {
  if (capture) *capture = 0;
  if (!stream) return false;
  const CudaDriver* driver = FindCudaDriver();
  int status = 0;
  if (!driver || (driver->cuStreamIsCapturing(stream, &status) == 0 && status == 0)) return false;
  uint64_t id = 0;
  const bool known = capture && driver->cuStreamGetCaptureInfo &&
                     driver->cuStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr) == 0;
  if (known) *capture = uint32_t(id);
  return true;
}

std::string CudaStreamError(void* stream) {
  const CudaDriver* driver = FindCudaDriver();
  const int error = driver ? driver->cuStreamSynchronize(stream) : 0;
  return error == 0 ? "" : driver->ErrorText("cuStreamSynchronize", error);
}

bool CopyFromCuda(void* stream, const void* from, size_t bytes, void* to) {
  const CudaDriver* driver = FindCudaDriver();
  return driver && driver->cuStreamSynchronize(stream) == 0 &&
         driver->cuMemcpy(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from), bytes) == 0;
}

CudaDeviceGuard::CudaDeviceGuard(int device) {
  const CudaDriver* driver = FindCudaDriver();
  int current = -1;
  if (!driver) {
    ok_ = false;
    return;
  }
  if (driver->cuCtxGetDevice(&current) == 0 && current == device) return;
  const CudaDriver::Context context = PrimaryContext(*driver, device);
  pushed_ = context && driver->cuCtxPushCurrent(context) == 0;
  ok_ = pushed_;
}

CudaDeviceGuard::~CudaDeviceGuard() {
  CudaDriver::Context popped = nullptr;
  if (pushed_) FindCudaDriver()->cuCtxPopCurrent(&popped);
}

}  // namespace lz
