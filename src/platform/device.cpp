// Names and numbers of devices: text of instruction sets, versions, and facts that follow from an SM version.
#include "platform/device.h"

namespace lz {
namespace {

int64_t& Fact(Device* device, DeviceField field) { return device->facts[size_t(field)]; }

template <size_t N>
int IndexOf(const std::array<std::string_view, N>& names, std::string_view name) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) return int(i);
  }
  return -1;
}

}  // namespace

void ApplyGenerations(std::span<const GenerationRange> ranges, Device* device) {
  const int64_t sm = device->fact(DeviceField::kSm);
  Fact(device, DeviceField::kGeneration) = 0;
  Fact(device, DeviceField::kTensorCoreGeneration) = 0;
  for (const GenerationRange& r : ranges) {
    if (sm < r.min_sm || sm > r.max_sm) continue;
    const int generation = GenerationFromName(r.generation);
    Fact(device, DeviceField::kGeneration) = generation < 0 ? 0 : generation;
    Fact(device, DeviceField::kTensorCoreGeneration) = r.tensor_core_generation;
    return;
  }
}

void ApplySmFacts(Device* device) {
  const int64_t sm = device->fact(DeviceField::kSm);
  int64_t sets = 0;
  if (sm >= 70) sets |= InstructionSetFromName("wmma");
  if (sm >= 75) sets |= InstructionSetFromName("mma_sync");
  if (sm == 90) sets |= InstructionSetFromName("wgmma");
  if (sm >= 100 && sm < 120) sets |= InstructionSetFromName("tcgen05");
  Fact(device, DeviceField::kInstructionSets) = sets;
  Fact(device, DeviceField::kSupportsFp16) = sm >= 60;
  Fact(device, DeviceField::kSupportsBf16) = sm >= 80;
  Fact(device, DeviceField::kSupportsFp8) = sm >= 89;
  Fact(device, DeviceField::kSupportsFp4) = sm >= 100;
  Fact(device, DeviceField::kSupportsTensorCores) = sm >= 70;
  Fact(device, DeviceField::kSupportsGraphs) = sm >= 35;
}

std::string IsaText(int64_t isa) {
  std::string text;
  for (const IsaName& row : kIsaNames) {
    if (!(isa & row.bit)) continue;
    if (!text.empty()) text += ", ";
    text += row.text;
  }
  return text.empty() ? "none" : text;
}

int64_t IsaFromName(std::string_view name) {
  for (const IsaName& row : kIsaNames) {
    if (row.name == name) return row.bit;
  }
  return 0;
}

int64_t InstructionSetFromName(std::string_view name) {
  if (name == "tcgen05.mma") name = "tcgen05";
  const int i = IndexOf(kGpuInstructionSets, name);
  return i < 0 ? 0 : int64_t{1} << i;
}

int GenerationFromName(std::string_view name) { return IndexOf(kGpuGenerations, name); }

int64_t VersionNumber(std::string_view text) {
  // major * 1000 + minor; a third number does not order drivers or toolkits.
  int64_t parts[2] = {0, 0};
  int part = 0;
  bool digits = false;
  for (char c : text) {
    if (c == '.') {
      if (!digits) return -1;
      digits = false;
      if (++part == 2) break;
    } else if (c >= '0' && c <= '9') {
      digits = true;
      parts[part] = parts[part] * 10 + (c - '0');
      if (parts[part] > 999999) return -1;
    } else {
      return -1;
    }
  }
  if (part < 2 && !digits) return -1;
  return parts[0] * 1000 + (parts[1] > 999 ? 999 : parts[1]);
}

}  // namespace lz
