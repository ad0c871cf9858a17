// The name of a device in measured records.
#pragma once

#include <string>
#include <string_view>

#include "platform/device.h"

namespace lz::perfdb {

// A GPU has its driver's name. The name of a CPU says little in a virtual machine, so it is followed by what matters to
// kernels, its widest instruction set and its L1 data cache, and the number of cores of the process: "AMD EPYC, AVX-512
// BF16, L1d 48 KiB, 2 cores".
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
