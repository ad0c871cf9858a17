// The name of a device in measured records.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "platform/device.h"

namespace lz::perfdb {

// A GPU has its driver's name, its compute capability and its multiprocessors: "NVIDIA H200, sm_90, 132
// multiprocessors". A name without its memory or its bus says too little ("NVIDIA GeForce RTX 3080"), and a MIG slice
// has fewer multiprocessors. The name of a CPU says little in a virtual machine, so it is followed by what matters to
// kernels, its widest instruction set and its L1 data cache, and the number of cores of the process: "AMD EPYC, AVX-512
// BF16, L1d 48 KiB, 2 cores".
inline std::string DeviceId(const Device& device) {
  if (device.platform != Platform::kCpu) {
    return device.model + ", " + device.arch + ", " + std::to_string(device.fact(DeviceField::kNumCores)) +
           " multiprocessors";
  }
  std::string_view widest = "no vectors";
  for (const IsaName& isa : kIsaNames) {
    if (device.fact(DeviceField::kIsa) & isa.bit) widest = isa.text;
  }
  return device.model + ", " + std::string(widest) + ", L1d " +
         std::to_string(device.fact(DeviceField::kL1dBytes) / 1024) + " KiB, " +
         std::to_string(device.fact(DeviceField::kNumCores)) + " cores";
}

// True if two compute capabilities (90) are of one generation of GPUs.
inline bool IsSameGeneration(int64_t a, int64_t b) {
  const auto of = [](int64_t sm) {
    return std::find_if(kDefaultGenerations.begin(), kDefaultGenerations.end(),
                        [&](const GenerationRange& r) { return sm >= r.min_sm && sm <= r.max_sm; });
  };
  return of(a) == of(b) && of(a) != kDefaultGenerations.end();
}

// The same without the number of cores, of a CPU.
inline std::string_view DeviceType(std::string_view id) {
  return id.ends_with(" cores") ? id.substr(0, id.rfind(',')) : id;
}

}  // namespace lz::perfdb
