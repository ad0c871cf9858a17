#include "base/usable_cpus.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

namespace lz {
namespace {

// The first two words of a file; a missing second word is empty.
std::pair<std::string, std::string> Words(const std::string& path) {
  std::pair<std::string, std::string> words;
  std::ifstream(path) >> words.first >> words.second;
  return words;
}

// Processors that `quota` microseconds per `period` amount to; 0: no limit ("max", -1), or not a number.
int Processors(const std::string& quota, const std::string& period) {
  const double us = std::strtod(quota.c_str(), nullptr), every = std::strtod(period.c_str(), nullptr);
  return us > 0 && every > 0 ? int(std::min(std::ceil(us / every), 1e6)) : 0;
}

int QuotaIn(const std::string& folder) {
  const auto [quota, period] = Words(folder + "/cpu.max");  // version 2
  if (!quota.empty()) return Processors(quota, period);
  return Processors(Words(folder + "/cpu.cfs_quota_us").first, Words(folder + "/cpu.cfs_period_us").first);
}

bool HasCpuController(std::string_view controllers) {
  if (controllers.empty()) return true;  // version 2: has all controllers
  return ("," + std::string(controllers) + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

int CpuQuota(const std::string& groups, const std::string& mounted) {
  int least = 0;
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // 4:cpu,cpuacct:/some/group, or 0::/some/group
    const size_t first = line.find(':'), second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!HasCpuController(controllers)) continue;
    const std::string top = controllers.empty() ? mounted : mounted + "/" + controllers;
    for (std::string group = line.substr(second + 1);; group.resize(group.find_last_of('/'))) {
      const int quota = QuotaIn(top + group);
      if (quota > 0 && (least == 0 || quota < least)) least = quota;
      if (group.find('/') == group.npos) break;
    }
  }
  return least;
}

int UsableCpus() {
  cpu_set_t set;
  const int allowed = sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set))
                                                                   : int(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  std::ifstream file("/proc/self/cgroup");
  const int quota = CpuQuota({std::istreambuf_iterator<char>(file), {}}, "/sys/fs/cgroup");
  return quota > 0 ? std::min(allowed, quota) : allowed;
}

}  // namespace lz
