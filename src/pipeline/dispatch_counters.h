// Counts of each kernel's runs: an observer with fixed memory that takes no lock and allocates nothing.
//
//   KernelCounters::OfProcess()->SetCounting(true);  ...
//   for (const KernelCount& count : KernelCounters::OfProcess()->Read()) ...
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "pipeline/dispatch_observer.h"

namespace lz {

// Bucket i has the runs that took less than 2^i ns, and at least 2^(i-1) ns; the last one all that took longer.
inline constexpr size_t kLatencyBuckets = 40;

struct KernelCount {
  const KernelEntry* kernel = nullptr;
  uint64_t runs = 0;      // those that failed included
  uint64_t failures = 0;  // not in the histogram
  // Runs after another kernel of the call had failed.
  uint64_t fallbacks = 0;
  uint64_t misses = 0;       // runs for which no cache had a plan; the others that are not fallbacks are hits
  uint64_t nanoseconds = 0;  // of runs that succeeded, host time
  std::array<uint64_t, kLatencyBuckets> buckets{};
};

class LZ_OWN KernelCounters : public Observer {
 public:
  // Kernels whose index is larger are counted together, in not_counted().
  static constexpr size_t kMaxKernels = 4096;
  static const std::shared_ptr<KernelCounters>& OfProcess();

  KernelCounters();
  ~KernelCounters() override;
  // Starts or stops; counts are kept.
  void SetCounting(bool on);
  bool counting() const { return counting_.load(std::memory_order_relaxed); }
  void Ended(const KernelRun& run, const Status& status, double seconds) override;

  std::vector<KernelCount> Read() const;  // of kernels that ran, by index
  uint64_t not_counted() const { return not_counted_.load(std::memory_order_relaxed); }

 private:
  struct Slot;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> not_counted_{0};
  std::atomic<bool> counting_{false};
};

}  // namespace lz
