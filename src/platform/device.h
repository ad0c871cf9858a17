// What a machine's device is, as numbers that constraint rows compare ("device.sm" >= 90). Probed once per process, or
// read from a file under devices/ (a simulated device: it answers "what would be chosen there", nothing runs on it).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernel.h"
#include "core/reason.h"
#include "core/status.h"

namespace lz {

// Instruction sets of a CPU, as bits of "device.isa".
enum IsaBit : int64_t {
  kIsaSse42 = 1 << 0,
  kIsaAvx2 = 1 << 1,  // with FMA and F16C
  kIsaAvx512 = 1 << 2,  // F, BW, DQ, VL, CD
  kIsaAvx512Vnni = 1 << 3,
  kIsaAvx512Bf16 = 1 << 4,
  kIsaAvx512Fp16 = 1 << 5,
  kIsaAmxBf16 = 1 << 6,
  kIsaAmxInt8 = 1 << 7,
  kIsaNeon = 1 << 8,
  kIsaNeonBf16 = 1 << 9,
  kIsaNeonDot = 1 << 10,
  kIsaSve = 1 << 11,
};

enum class DeviceField : uint8_t {
  kPlatform,  // lz::Platform
  kSm,        // 90 for compute capability 9.0; 0 where it has no meaning
  kGeneration,  // index into kGpuGenerations
  kTensorCoreGeneration,
  kIsa,
  kInstructionSets,  // GPU: bits of kGpuInstructionSets (wmma, wgmma, tcgen05)
  kDriverVersion,    // 580.65 = 580065
  kCudaVersion,      // 13.0 = 13000
  kSupportsBf16,
  kSupportsFp16,
  kSupportsFp8,
  kSupportsFp4,
  kSupportsTensorCores,
  kSupportsGraphs,
  kMaxGridX,
  kMaxGridY,
  kMaxGridZ,
  kMaxGridBlocks,
  kMemoryBytes,
  kNumCores,  // CPU cores or multiprocessors
  kCount
};

struct DeviceFieldInfo {
  std::string_view name;  // after "device."
  ReasonCode below;       // the reason when a row wants more
  ReasonCode above;       // the reason when a row wants less
};
inline constexpr std::array<DeviceFieldInfo, size_t(DeviceField::kCount)> kDeviceFields = {{
    {"platform", ReasonCode::kPlatformMismatch, ReasonCode::kPlatformMismatch},
    {"sm", ReasonCode::kSmTooOld, ReasonCode::kSmTooNew},
    {"generation", ReasonCode::kGpuGenerationUnsupported, ReasonCode::kGpuGenerationUnsupported},
    {"tensor_core_generation", ReasonCode::kTensorCoreGenUnsupported, ReasonCode::kTensorCoreGenUnsupported},
    {"isa", ReasonCode::kDeviceCapabilityUnsupported, ReasonCode::kDeviceCapabilityUnsupported},
    {"instruction_sets", ReasonCode::kInstructionSetMismatch, ReasonCode::kInstructionSetMismatch},
    {"driver_version", ReasonCode::kDriverVersionUnsupported, ReasonCode::kDriverVersionUnsupported},
    {"cuda_version", ReasonCode::kDriverVersionUnsupported, ReasonCode::kDriverVersionUnsupported},
    {"supports_bf16", ReasonCode::kDeviceCapabilityUnsupported, ReasonCode::kDeviceCapabilityUnsupported},
    {"supports_fp16", ReasonCode::kDeviceCapabilityUnsupported, ReasonCode::kDeviceCapabilityUnsupported},
    {"supports_fp8", ReasonCode::kDeviceCapabilityUnsupported, ReasonCode::kDeviceCapabilityUnsupported},
    {"supports_fp4", ReasonCode::kDeviceCapabilityUnsupported, ReasonCode::kDeviceCapabilityUnsupported},
    {"supports_tensor_cores", ReasonCode::kDeviceCapabilityUnsupported, ReasonCode::kDeviceCapabilityUnsupported},
    {"supports_graphs", ReasonCode::kCudaGraphUnsafe, ReasonCode::kCudaGraphUnsafe},
    {"max_grid_x", ReasonCode::kCudaGridDimExceeded, ReasonCode::kCudaGridDimExceeded},
    {"max_grid_y", ReasonCode::kCudaGridDimExceeded, ReasonCode::kCudaGridDimExceeded},
    {"max_grid_z", ReasonCode::kCudaGridDimExceeded, ReasonCode::kCudaGridDimExceeded},
    {"max_grid_blocks", ReasonCode::kCudaBlockLimitExceeded, ReasonCode::kCudaBlockLimitExceeded},
    {"memory_bytes", ReasonCode::kMemoryHeadroomExceeded, ReasonCode::kMemoryHeadroomExceeded},
    {"num_cores", ReasonCode::kDeviceCapabilityUnsupported, ReasonCode::kDeviceCapabilityUnsupported},
}};

// 75-79, 80-88, 89, 90-99, 100-199 by default (policy key devices.sm_to_generation).
inline constexpr std::array<std::string_view, 7> kGpuGenerations = {"none",  "volta",  "turing",   "ampere",
                                                                    "ada",   "hopper", "blackwell"};
inline constexpr std::array<std::string_view, 4> kGpuInstructionSets = {"wmma", "mma_sync", "wgmma", "tcgen05"};
inline constexpr std::array<std::string_view, 6> kPlatformNames = {"any", "cpu", "cuda", "rocm", "xpu", "hpu"};

struct Device {
  std::string name;    // "cpu", "cuda:0", "h100" (simulated)
  std::string model;   // "AMD EPYC 9575F", "NVIDIA H100 80GB HBM3"
  std::string vendor;
  std::string uuid;
  Platform platform = Platform::kCpu;
  bool simulated = false;
  std::array<int64_t, size_t(DeviceField::kCount)> facts = {};

  int64_t fact(DeviceField f) const { return facts[size_t(f)]; }
};

// This machine's CPU; probed on the first call.
const Device& HostCpu();
// CUDA devices that the driver shows; empty without a driver. `why_none` then says why in one phrase.
std::vector<Device> ProbeCudaDevices(std::string* why_none);
// A device file (schemas/device.schema.json). Unknown or missing keys are a ConfigError.
Result<Device> ParseDevice(std::string_view json);
// "AVX2, AVX-512" for bits of "device.isa".
std::string IsaText(int64_t isa);

}  // namespace lz
