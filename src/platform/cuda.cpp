// Probes CUDA devices through the driver library: nothing here links against CUDA.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "platform/cuda_driver.h"
#include "platform/device.h"

namespace lz {
namespace {

// Numbers of the driver API's CUdevice_attribute.
enum Attribute : int {
  kMaxGridDimX = 5,
  kMaxGridDimY = 6,
  kMaxGridDimZ = 7,
  kMultiprocessorCount = 16,
  kL2CacheSize = 38,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerBlockOptin = 97,
};

// "GPU-5a9b...", as the driver's tools print it.
std::string UuidText(const CudaDriver::Uuid& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char byte[3];
    std::snprintf(byte, sizeof(byte), "%02x", uuid.bytes[i]);
    text += byte;
  }
  return text;
}

// 580.65 as 580065; 0 if unknown. The driver API does not report its release: the kernel module does, otherwise NVML.
int64_t DriverRelease() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  <date>": the first word that is a dotted version.
  for (size_t at = 0; at < line.size();) {
    const size_t start = line.find_first_not_of(' ', at);
    if (start == std::string::npos) break;
    const size_t end = std::min(line.find(' ', start), line.size());
    const std::string_view word = std::string_view(line).substr(start, end - start);
    const int64_t version = word.find('.') == std::string_view::npos ? -1 : VersionNumber(word);
    if (version > 0) return version;
    at = end;
  }
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!nvml) return 0;
  const auto init = reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"));
  const auto get = reinterpret_cast<int (*)(char*, unsigned)>(dlsym(nvml, "nvmlSystemGetDriverVersion"));
  char text[96] = {};
  if (!init || !get || init() != 0 || get(text, sizeof(text)) != 0) return 0;
  return std::max<int64_t>(0, VersionNumber(text));
}

Device Describe(const CudaDriver& driver, int ordinal, int handle) {
  Device d;
  const auto attribute = [&](Attribute a) {
    int value = 0;
    return driver.cuDeviceGetAttribute(&value, a, handle) == 0 ? int64_t(value) : int64_t(0);
  };
  const auto set = [&](DeviceField field, int64_t value) { d.facts[size_t(field)] = value; };
  d.name = "cuda:" + std::to_string(ordinal);
  d.vendor = "NVIDIA";
  d.platform = Platform::kCuda;
  char name[256] = {};
  if (driver.cuDeviceGetName(name, int(sizeof(name)) - 1, handle) == 0) d.model = name;
  CudaDriver::Uuid uuid = {};
  if (driver.cuDeviceGetUuid(&uuid, handle) == 0) d.uuid = UuidText(uuid);
  const int64_t sm = attribute(kComputeCapabilityMajor) * 10 + attribute(kComputeCapabilityMinor);
  d.arch = "sm_" + std::to_string(sm);
  set(DeviceField::kPlatform, int64_t(Platform::kCuda));
  set(DeviceField::kSm, sm);
  ApplySmFacts(&d);
  ApplyGenerations(kDefaultGenerations, &d);
  int version = 0;  // 13000 for 13.0, 12080 for 12.8
  if (driver.cuDriverGetVersion(&version) == 0)
    set(DeviceField::kCudaVersion, version / 1000 * 1000 + version % 1000 / 10);
  set(DeviceField::kDriverVersion, DriverRelease());
  set(DeviceField::kMaxGridX, attribute(kMaxGridDimX));
  set(DeviceField::kMaxGridY, attribute(kMaxGridDimY));
  set(DeviceField::kMaxGridZ, attribute(kMaxGridDimZ));
  set(DeviceField::kMaxGridBlocks, attribute(kMaxGridDimX) * attribute(kMaxGridDimY));
  size_t bytes = 0;
  if (driver.cuDeviceTotalMem(&bytes, handle) == 0) set(DeviceField::kMemoryBytes, int64_t(bytes));
  set(DeviceField::kNumCores, attribute(kMultiprocessorCount));
  set(DeviceField::kSharedMemoryPerBlock, attribute(kMaxSharedMemoryPerBlockOptin));
  set(DeviceField::kL2Bytes, attribute(kL2CacheSize));
  return d;
}

}  // namespace

std::vector<Device> ProbeCudaDevices(std::string* why_none) {
  std::string reason;
  std::string& why = why_none ? *why_none : reason;
  why.clear();
  const CudaDriver* found = FindCudaDriver(&why);
  if (!found) return {};
  const CudaDriver& driver = *found;
  if (const int error = driver.cuInit(0); error != 0) {
    why = driver.ErrorText("cuInit", error);
    return {};
  }
  int count = 0;
  if (const int error = driver.cuDeviceGetCount(&count); error != 0) {
    why = driver.ErrorText("cuDeviceGetCount", error);
    return {};
  }
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) {
    int handle = 0;
    if (const int error = driver.cuDeviceGet(&handle, i); error != 0) {
      why = driver.ErrorText("cuDeviceGet", error);
      continue;
    }
    devices.push_back(Describe(driver, i, handle));
  }
  if (devices.empty() && why.empty()) why = "the NVIDIA driver shows no device";
  return devices;
}

}  // namespace lz
