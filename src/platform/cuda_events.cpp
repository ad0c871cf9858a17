#include "platform/cuda_events.h"

#include <dlfcn.h>

#include <type_traits>

#include "platform/cuda_driver.h"

namespace lz {
namespace {

constexpr int kNotReady = 600;  // CUDA_ERROR_NOT_READY

// The driver's functions, under their own names; all return 0 on success.
struct Events {
  int (*cuEventCreate)(void** event, unsigned flags) = nullptr;
  int (*cuEventRecord)(void* event, void* stream) = nullptr;
  int (*cuEventQuery)(void* event) = nullptr;
  int (*cuEventSynchronize)(void* event) = nullptr;
  int (*cuEventElapsedTime)(float* ms, void* start, void* end) = nullptr;
  int (*cuEventDestroy)(void* event) = nullptr;
};

// nullptr: no driver, or one without events.
const Events* FindEvents() {
  static const Events* const found = []() -> const Events* {
    void* const library = FindCudaDriver() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!library) return nullptr;
    static Events e;
    const auto load = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      return *function != nullptr;
    };
    const bool complete = load("cuEventCreate", &e.cuEventCreate) && load("cuEventRecord", &e.cuEventRecord) &&
                          load("cuEventQuery", &e.cuEventQuery) && load("cuEventSynchronize", &e.cuEventSynchronize) &&
                          load("cuEventElapsedTime", &e.cuEventElapsedTime) &&
                          load("cuEventDestroy_v2", &e.cuEventDestroy);
    return complete ? &e : nullptr;
  }();
  return found;
}

}  // namespace

CudaTimer::CudaTimer(int device) : device_(device) {
  const Events* const d = FindEvents();
  if (!d) return;
  const CudaDeviceGuard guard(device);
  ok_ = guard.ok() && d->cuEventCreate(&start_, 0) == 0 && d->cuEventCreate(&end_, 0) == 0;
}

CudaTimer::~CudaTimer() {
  const CudaDeviceGuard guard(device_);
  for (void* event : {start_, end_}) {
    if (event) FindEvents()->cuEventDestroy(event);
  }
}

void CudaTimer::Start(void* stream) {
  const CudaDeviceGuard guard(device_);
  ok_ = ok_ && FindEvents()->cuEventRecord(start_, stream) == 0;
}

void CudaTimer::Stop(void* stream) {
  const CudaDeviceGuard guard(device_);
  ok_ = ok_ && FindEvents()->cuEventRecord(end_, stream) == 0;
}

bool CudaTimer::Query(double* us) {
  const CudaDeviceGuard guard(device_);
  const int state = ok_ ? FindEvents()->cuEventQuery(end_) : 0;
  if (state == kNotReady) return false;
  ok_ = ok_ && state == 0;
  *us = Elapsed();
  return true;
}

double CudaTimer::Wait() {
  const CudaDeviceGuard guard(device_);
  ok_ = ok_ && FindEvents()->cuEventSynchronize(end_) == 0;
  return Elapsed();
}

double CudaTimer::Elapsed() {
  float ms = 0;
  ok_ = ok_ && FindEvents()->cuEventElapsedTime(&ms, start_, end_) == 0;
  return ok_ ? double(ms) * 1e3 : 0;
}

}  // namespace lz
