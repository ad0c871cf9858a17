// 7 plan: the choice for one class of calls, as a value. Plans are interned and valid for the life of the process:
// there are at most kernels times transforms of them, so a cached or prepared plan can never dangle.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "pipeline/filter.h"
#include "pipeline/plan_reference.h"

namespace lz {

class Health;

// The only part of a plan that changes.
struct WatchFlag {
  std::atomic<bool> set{false};
  WatchFlag() = default;
  WatchFlag(const WatchFlag& other) : set(other.set.load(std::memory_order_relaxed)) {}
  WatchFlag& operator=(const WatchFlag&) = delete;
};

struct Plan {
  uint32_t id = 0;
  const KernelEntry* kernel = nullptr;
  const KernelEntry* fallback = nullptr;  // the last kernel that may run if others fail; nullptr: a failure is returned
  Transforms transforms, fallback_transforms;
  const KernelEntry* reference = nullptr;  // debug mode: a fault counts only if this kernel does not have it too;
                                           // nullptr: not in debug mode
  // Set if the kernel is a reference although another kernel should have been selected: its calls are counted.
  ReferenceUses::Counted* reference_use = nullptr;
  bool locked = false;   // named by a lock or kernel=: a failure raises
  bool strict = false;   // passed to kernels as LZ_KERNEL_STRICT
  bool checked = false;  // debug mode: each run of a kernel is checked
  // Runs that succeed are reported to health too: the kernel is new to this process, or has failed.
  mutable WatchFlag watched;
  Health* health = nullptr;

  bool is_watched() const { return watched.set.load(std::memory_order_relaxed); }
  void Watch(bool on) const { watched.set.store(on, std::memory_order_relaxed); }
  bool uses_fallback() const { return reference_use != nullptr; }
  void CountCall() const {
    if (reference_use) [[unlikely]]
      reference_use->calls.fetch_add(1, std::memory_order_relaxed);
  }
};

class PlanTable {
 public:
  const Plan* Intern(const Plan& plan);
  const Plan* Get(uint32_t id) const;

 private:
  using Key = std::tuple<const KernelEntry*, const KernelEntry*, const KernelEntry*, Transforms, Transforms,
                         ReferenceUses::Counted*, bool, bool, bool>;
  mutable std::mutex mutex_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
  std::vector<const Plan*> by_id_;
};

}  // namespace lz
