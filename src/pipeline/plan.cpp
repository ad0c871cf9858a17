#include "pipeline/plan.h"

namespace lz {

const Plan* PlanTable::Intern(const Plan& plan) {
  std::lock_guard lock(mutex_);
  std::unique_ptr<Plan>& slot =
      plans_[{plan.kernel, plan.fallback, plan.reference, plan.transforms, plan.fallback_transforms, plan.reference_use,
              plan.locked, plan.strict, plan.checked}];
  if (!slot) {
    slot = std::make_unique<Plan>(plan);
    slot->id = uint32_t(by_id_.size());
    by_id_.push_back(slot.get());
  }
  return slot.get();
}

const Plan* PlanTable::Get(uint32_t id) const {
  std::lock_guard lock(mutex_);
  return id < by_id_.size() ? by_id_[id] : nullptr;
}

}  // namespace lz
