// The memory that one allocation can have on the device of a call.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>

#include "base/memory.h"
#include "pipeline/request.h"
#include "platform/device.h"

namespace lz {

// A GPU's allocator is asked at most once a second, because its answer takes up to 100 us, and again after an
// allocation has failed. The host's memory is read at each use (20 us).
class FreeMemory {
 public:
  using OfGpu = std::function<int64_t(int32_t ordinal)>;  // bytes; -1: unknown

  // Bytes; INT64_MAX: unknown. Of a simulated device: all its memory.
  int64_t Of(const Request& request, const Device& device);
  int64_t OfHost() const { return host_(); }  // -1: unknown
  void Forget();                              // an allocation has failed: what is known is wrong

  void set_host(std::function<int64_t()> host) { host_ = std::move(host); }
  void set_gpu(OfGpu gpu) { gpu_ = std::move(gpu); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kKept{1};
  struct Known {
    int64_t bytes = -1;
    Clock::time_point until;
  };

  int64_t OfGpuNow(const Request& request);

  std::function<int64_t()> host_ = &FreeHostBytes;
  OfGpu gpu_;
  std::mutex mutex_;
  std::map<int32_t, Known> known_;  // by ordinal
};

}  // namespace lz
