// How records name the device that they were measured on.
#pragma once

#include <string>
#include <string_view>

#include "platform/device.h"

namespace lz::perfdb {

// A GPU as its driver names it. A CPU's name says little in a virtual machine, so beside it stand what kernels see of
// it, its widest instruction set and its L1 data cache, and how many cores the process has: "AMD EPYC, AVX-512 BF16,
// L1d 48 KiB, 2 cores".
inline std::string DeviceId(const Device& device) {
  if (device.platform != Platform::kCpu) return device.model;
  std::string_view widest = "no vectors";
  for (const IsaName& isa : kIsaNames) {
    if (device.fact(DeviceField::kIsa) & isa.bit) widest = isa.text;
  }
  return device.model + ", " + std::string(widest) + ", L1d " +
         std::to_string(device.fact(DeviceField::kL1dBytes) / 1024) + " KiB, " +
         std::to_string(device.fact(DeviceField::kNumCores)) + " cores";
}

// The same without the number of cores.
inline std::string_view DeviceType(std::string_view id) {
  return id.ends_with(" cores") ? id.substr(0, id.rfind(',')) : id;
}

}  // namespace lz::perfdb
