#include "pipeline/plan_reference.h"

#include <algorithm>

namespace lz {
namespace {

ReferenceUse WithCalls(const ReferenceUses::Counted& counted) {
  ReferenceUse use = counted.use;
  use.calls = counted.calls.load(std::memory_order_relaxed);
  return use;
}

}  // namespace

ReferenceUses::Counted* ReferenceUses::Note(const KernelEntry& kernel, Platform platform,
                                            const std::vector<std::string>& libraries) {
  std::lock_guard lock(mutex_);
  Counted& counted = uses_[{kernel.index, platform}];
  counted.use.kernel = &kernel;
  counted.use.platform = platform;
  std::vector<std::string>& known = counted.use.libraries;
  known.insert(known.end(), libraries.begin(), libraries.end());
  std::ranges::sort(known);
  known.erase(std::unique(known.begin(), known.end()), known.end());
  return &counted;
}

ReferenceUse ReferenceUses::Read(const Counted& counted) const {
  std::lock_guard lock(mutex_);
  return WithCalls(counted);
}

std::vector<ReferenceUse> ReferenceUses::Read() const {
  std::lock_guard lock(mutex_);
  std::vector<ReferenceUse> found;
  for (const auto& [key, counted] : uses_) {
    if (counted.calls.load(std::memory_order_relaxed) > 0) found.push_back(WithCalls(counted));
  }
  return found;
}

}  // namespace lz
