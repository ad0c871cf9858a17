#include "pipeline/context_memory.h"

namespace lz {

int64_t FreeMemory::Of(const Request& r, const Device& device) {
  const int64_t all = device.fact(DeviceField::kMemoryBytes);
  int64_t free = -1;
  if (device.simulated) {
    free = all;
  } else if (device.platform == Platform::kCpu) {
    free = OfHost();
  } else if (device.platform == Platform::kCuda && gpu_) {
    free = OfGpuNow(r);
  }
  if (free < 0 && device.platform != Platform::kCpu) free = all > 0 ? all : -1;
  return free < 0 ? INT64_MAX : free;
}

// While a call is captured the allocator is not asked: what was known before counts, whatever its age.
int64_t FreeMemory::OfGpuNow(const Request& r) {
  const int32_t ordinal = r.where.id;
  const bool capturing = (r.flags & LZ_FLAG_CAPTURING) != 0;
  {
    std::lock_guard lock(mutex_);
    const auto at = known_.find(ordinal);
    const bool fresh = at != known_.end() && Clock::now() < at->second.until;
    if (fresh || capturing) return at == known_.end() ? -1 : at->second.bytes;
  }
  const int64_t bytes = gpu_(ordinal);  // without the lock: it may wait for the host language
  std::lock_guard lock(mutex_);
  known_[ordinal] = {bytes, Clock::now() + kKept};
  return bytes;
}

void FreeMemory::Forget() {
  std::lock_guard lock(mutex_);
  for (auto& [ordinal, known] : known_) known.until = {};
}

}  // namespace lz
