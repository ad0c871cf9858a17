// The number of processors that this process may keep busy: those of its affinity mask, and at most the quota of its
// control groups (a container's CPU quota). More threads would be throttled within a loop that all wait for.
#pragma once

#include <string>

namespace lz {

// At least 1. Reads files of /proc and /sys at each call. Bindings call it too.
__attribute__((visibility("default"))) int UsableCpus();

// The quota of the control groups that `groups` (the text of /proc/self/cgroup) names and of those above them, below
// the folder where they are mounted: processors, rounded up. 0: no quota. Versions 1 and 2.
int CpuQuota(const std::string& groups, const std::string& mounted);

}  // namespace lz
