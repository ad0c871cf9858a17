// 7 plan: the choice for one class of calls, as a value. Plans are interned and live as long as the process: there are
// no more of them than kernels times transforms, so a cached or prepared plan can never dangle.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "pipeline/filter.h"
#include "pipeline/plan_reference.h"

namespace lz {

struct Plan {
  uint32_t id = 0;
  const KernelEntry* kernel = nullptr;
  const KernelEntry* fallback = nullptr;  // runs when the kernel fails; nullptr: the failure is the answer
  Transforms transforms, fallback_transforms;
  const KernelEntry* reference = nullptr;  // debug: what is wrong only if it does not do it too; nullptr: not in debug
  // The kernel is a reference where another should have been: its calls are counted. nullptr otherwise.
  ReferenceUses::Counted* reference_use = nullptr;
  bool locked = false;   // named by a lock or kernel=: a failure raises
  bool strict = false;   // kernels are told: LZ_KERNEL_STRICT
  bool checked = false;  // debug: what the kernel did is looked at

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
