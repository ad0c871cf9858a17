// Probes this machine's CPU: instruction sets that both processor and operating system support, model, cores, caches.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "base/usable_cpus.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace lz {
namespace {

// The first line of a file of /sys or /proc; empty if it cannot be read.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value of "key : value" in /proc/cpuinfo.
std::string CpuInfo(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return {};
}

// "48K", "1024K", "32M" in bytes.
int64_t SizeText(const std::string& text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc()) return 0;
  if (end < text.data() + text.size() && *end == 'K') return n << 10;
  if (end < text.data() + text.size() && *end == 'M') return n << 20;
  return n;
}

void ProbeCaches(Device* device) {
  for (int i = 0; i < 8; ++i) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    const std::string level = FirstLine(folder + "level");
    if (level.empty()) break;
    if (FirstLine(folder + "type") == "Instruction") continue;
    const int64_t bytes = SizeText(FirstLine(folder + "size"));
    if (level == "1") device->facts[size_t(DeviceField::kL1dBytes)] = bytes;
    if (level == "2") device->facts[size_t(DeviceField::kL2Bytes)] = bytes;
    if (level == "3") device->facts[size_t(DeviceField::kL3Bytes)] = bytes;
  }
  const auto fill = [&](DeviceField field, int name) {
    int64_t& fact = device->facts[size_t(field)];
    if (fact == 0) fact = std::max<int64_t>(0, sysconf(name));
  };
#ifdef _SC_LEVEL1_DCACHE_SIZE
  fill(DeviceField::kL1dBytes, _SC_LEVEL1_DCACHE_SIZE);
  fill(DeviceField::kL2Bytes, _SC_LEVEL2_CACHE_SIZE);
  fill(DeviceField::kL3Bytes, _SC_LEVEL3_CACHE_SIZE);
#endif
}

// Physical cores among the processors that this process may run on, at most its quota.
int64_t NumCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return UsableCpus();
  std::set<std::pair<std::string, std::string>> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    const std::string core = FirstLine(folder + "core_id");
    if (core.empty()) return UsableCpus();
    cores.emplace(FirstLine(folder + "physical_package_id"), core);
  }
  return std::clamp<int64_t>(int64_t(cores.size()), 1, UsableCpus());
}

#if defined(__x86_64__)

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};
Registers Cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r;
  if (leaf > __get_cpuid_max(leaf & 0x80000000u, nullptr)) return r;
  __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  return r;
}
bool Bit(uint32_t word, int bit) { return (word >> bit) & 1; }

// The register state that the operating system saves and restores (XCR0); 0 without XSAVE.
uint64_t SavedState() {
  if (!Bit(Cpuid(1).ecx, 27)) return 0;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Requests permission for AMX tiles and returns whether this process has it. Linux requires the request because tile
// state enlarges the stacks of signal handlers. It refuses if a thread has an alternate stack that is too small, and
// after granting it refuses such alternate stacks (AT_MINSIGSTKSZ is the size they need).
bool TilesPermitted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

int64_t ProbeIsa() {
  const Registers one = Cpuid(1), seven = Cpuid(7), seven_one = Cpuid(7, 1);
  const uint64_t state = SavedState();
  const bool ymm = (state & 0x6) == 0x6;
  const bool zmm = ymm && (state & 0xe0) == 0xe0;
  const bool tiles = (state & 0x60000) == 0x60000 && TilesPermitted();
  int64_t isa = 0;
  if (Bit(one.ecx, 20)) isa |= kIsaSse42;
  if (ymm && Bit(seven.ebx, 5) && Bit(one.ecx, 12) && Bit(one.ecx, 29)) isa |= kIsaAvx2;
  constexpr uint32_t kF = 1u << 16, kDQ = 1u << 17, kCD = 1u << 28, kBW = 1u << 30, kVL = 1u << 31;
  constexpr uint32_t kNeeded = kF | kDQ | kCD | kBW | kVL;
  if (zmm && (seven.ebx & kNeeded) == kNeeded) {
    isa |= kIsaAvx512;
    if (Bit(seven.ecx, 1)) isa |= kIsaAvx512Vbmi;
    if (Bit(seven.ecx, 11)) isa |= kIsaAvx512Vnni;
    if (Bit(seven_one.eax, 5)) isa |= kIsaAvx512Bf16;
    if (Bit(seven.edx, 23)) isa |= kIsaAvx512Fp16;
  }
  if (tiles && Bit(seven.edx, 24)) {
    if (Bit(seven.edx, 22)) isa |= kIsaAmxBf16;
    if (Bit(seven.edx, 25)) isa |= kIsaAmxInt8;
  }
  return isa;
}

void ProbeNames(Device* device) {
  device->arch = "x86-64";
  const Registers zero = Cpuid(0);
  char vendor[13] = {};
  std::memcpy(vendor, &zero.ebx, 4);
  std::memcpy(vendor + 4, &zero.edx, 4);
  std::memcpy(vendor + 8, &zero.ecx, 4);
  const std::string_view id = vendor;
  device->vendor = id == "AuthenticAMD" ? "AMD" : id == "GenuineIntel" ? "Intel" : std::string(id);
  char brand[49] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    const Registers r = Cpuid(0x80000002u + i);
    std::memcpy(brand + 16 * i, &r, 16);
  }
  std::string model = brand;
  model.erase(0, model.find_first_not_of(' '));
  while (!model.empty() && model.back() == ' ') model.pop_back();
  device->model = model.empty() ? CpuInfo("model name") : model;
}

#elif defined(__aarch64__)

// Bits of AT_HWCAP and AT_HWCAP2 as Linux numbers them for AArch64.
int64_t ProbeIsa() {
  const unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
  int64_t isa = 0;
  if (caps & (1ul << 1)) isa |= kIsaNeon;        // ASIMD
  if (caps & (1ul << 20)) isa |= kIsaNeonDot;    // ASIMDDP
  if (caps & (1ul << 22)) isa |= kIsaSve;        // SVE
  if (caps2 & (1ul << 14)) isa |= kIsaNeonBf16;  // BF16
  return isa;
}

void ProbeNames(Device* device) {
  device->arch = "aarch64";
  const std::string implementer = CpuInfo("CPU implementer"), part = CpuInfo("CPU part");
  device->vendor = implementer == "0x41" ? "ARM" : implementer == "0x4e" ? "NVIDIA" : "implementer " + implementer;
  const std::string model = CpuInfo("model name");
  device->model = !model.empty() ? model : part == "0xd4f" ? "Neoverse V2" : "part " + part;
}

#else

int64_t ProbeIsa() { return 0; }
void ProbeNames(Device* device) { device->model = CpuInfo("model name"); }

#endif

Device Probe() {
  Device d;
  d.name = "cpu";
  d.platform = Platform::kCpu;
  ProbeNames(&d);
  const int64_t isa = ProbeIsa();
  d.facts[size_t(DeviceField::kPlatform)] = int64_t(Platform::kCpu);
  d.facts[size_t(DeviceField::kIsa)] = isa;
  // Arithmetic in the format; every CPU converts from and to it.
  d.facts[size_t(DeviceField::kSupportsBf16)] = (isa & (kIsaAvx512Bf16 | kIsaAmxBf16 | kIsaNeonBf16)) != 0;
  d.facts[size_t(DeviceField::kSupportsFp16)] = (isa & (kIsaAvx512Fp16 | kIsaNeon)) != 0;
  d.facts[size_t(DeviceField::kMemoryBytes)] = int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  d.facts[size_t(DeviceField::kNumCores)] = NumCores();
  ProbeCaches(&d);
  return d;
}

}  // namespace

const Device& HostCpu() {
  static const Device device = Probe();
  return device;
}

}  // namespace lz
