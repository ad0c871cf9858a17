// How many processors this process may keep busy: those of its affinity mask, and no more than its control groups pay
// for (a container's CPU quota). Threads beyond that are throttled in the midst of a loop that all wait for.
#pragma once

#include <string>

namespace lz {

// At least 1. Read anew at each call: files of /proc and /sys. The doors ask too.
__attribute__((visibility("default"))) int UsableCpus();

// The quota of the control groups that `groups` (the text of /proc/self/cgroup) names and of those above them, below
// the folder where they are mounted: processors, rounded up. 0: none has one. Versions 1 and 2.
int CpuQuota(const std::string& groups, const std::string& mounted);

}  // namespace lz
