// The time of work on a CUDA stream, between two events of the driver.
//   CudaTimer timer(device);          // its device's primary context is made current for each call
//   timer.Start(stream);  ... work ...  timer.Stop(stream);
//   while (!timer.Query(&us)) { ... }  // never waits; Wait() does
#pragma once

#include "base/export.h"

namespace lz {

class LZ_OWN CudaTimer {
 public:
  explicit CudaTimer(int device);
  ~CudaTimer();
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;

  bool ok() const { return ok_; }  // false: no driver, or it has failed
  int device() const { return device_; }
  void Start(void* stream);
  void Stop(void* stream);
  // True if the work is done, with its microseconds, or has failed, which ok() then says. Does not wait.
  bool Query(double* us);
  double Wait();  // microseconds; 0 if it has failed

 private:
  double Elapsed();

  int device_;
  void *start_ = nullptr, *end_ = nullptr;
  bool ok_ = false;
};

}  // namespace lz
