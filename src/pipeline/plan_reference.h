// Calls that a reference serves although another kernel should have: on a GPU, or of an operation that has other
// kernels. They are fallbacks, which are counted and reported.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "registry/registry.h"

namespace lz {

// The uses of one reference on one platform.
struct ReferenceUse {
  const KernelEntry* kernel;
  Platform platform;
  std::vector<std::string> libraries;  // not usable here, though their kernels would have taken some of the
                                       // calls; sorted
  uint64_t calls = 0;
};

class ReferenceUses {
 public:
  struct Counted {
    ReferenceUse use;  // guarded by the owner's mutex; its `calls` are not used
    std::atomic<uint64_t> calls{0};
  };
  // Returns the entry of this reference, with `libraries` added to the missing ones. Valid as long as this object.
  Counted* Note(const KernelEntry& kernel, Platform platform, const std::vector<std::string>& libraries);
  ReferenceUse Read(const Counted& counted) const;
  std::vector<ReferenceUse> Read() const;  // those that have served calls, in order of registration

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<uint32_t, Platform>, Counted> uses_;  // by index of the kernel, and platform
};

}  // namespace lz
