// 7 plan: the choice for one class of calls, as a value. Plans are interned and live as long as the process: there are
// no more of them than kernels times transforms, so a cached or prepared plan can never dangle.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "registry/registry.h"

namespace lz {

struct Plan {
  uint32_t id = 0;
  const KernelEntry* kernel = nullptr;
  const KernelEntry* fallback = nullptr;  // runs when the kernel fails; nullptr: the failure is the answer
  bool uses_fallback = false;             // the operation's reference, because nothing else may run
  bool locked = false;                    // named by a lock or kernel=: a failure raises
  uint32_t contiguous_inputs = 0;         // bit i: input i is copied to contiguous memory first
};

class PlanTable {
 public:
  const Plan* Intern(const Plan& plan);
  const Plan* Get(uint32_t id) const;

 private:
  using Key = std::tuple<const KernelEntry*, const KernelEntry*, bool, bool, uint32_t>;
  mutable std::mutex mutex_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
  std::vector<const Plan*> by_id_;
};

}  // namespace lz
