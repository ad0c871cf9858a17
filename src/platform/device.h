// The properties of a device as numbers that constraint rows compare ("device.sm" >= 90). Probed once per process, or
// read from a file under devices/ (a simulated device: selection can be asked what it would choose there, but nothing
// runs on it).
#pragma once

#include <array>
#include <cstdint>
#include <span>
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
  kIsaAvx2 = 1 << 1,    // with FMA and F16C
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
  kIsaAvx512Vbmi = 1 << 12,
};

struct IsaName {
  IsaBit bit;
  std::string_view name;  // the name in files and rules
  std::string_view text;  // the name in texts for users
};
inline constexpr auto kIsaNames = std::to_array<IsaName>({
    {kIsaSse42, "sse4_2", "SSE4.2"},
    {kIsaAvx2, "avx2", "AVX2"},
    {kIsaAvx512, "avx512", "AVX-512"},
    {kIsaAvx512Vnni, "avx512_vnni", "AVX-512 VNNI"},
    {kIsaAvx512Bf16, "avx512_bf16", "AVX-512 BF16"},
    {kIsaAvx512Fp16, "avx512_fp16", "AVX-512 FP16"},
    {kIsaAvx512Vbmi, "avx512_vbmi", "AVX-512 VBMI"},
    {kIsaAmxBf16, "amx_bf16", "AMX BF16"},
    {kIsaAmxInt8, "amx_int8", "AMX INT8"},
    {kIsaNeon, "neon", "NEON"},
    {kIsaNeonBf16, "neon_bf16", "NEON BF16"},
    {kIsaNeonDot, "neon_dot", "NEON dot product"},
    {kIsaSve, "sve", "SVE"},
});

enum class DeviceField : uint8_t {
  kPlatform,    // lz::Platform
  kSm,          // 90 for compute capability 9.0; 0 if it has none
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
  kNumCores,              // physical CPU cores that this process may use, or multiprocessors
  kSharedMemoryPerBlock,  // bytes that one GPU block can opt in to; LDS of a workgroup
  kL1dBytes,              // per core; 0 on a GPU
  kL2Bytes,               // per core, or of the GPU
  kL3Bytes,               // per socket; 0 if there is none
  kRocVersion,            // 6.4 = 6004
  kCount
};

struct DeviceFieldInfo {
  std::string_view name;  // after "device."
  ReasonCode below;       // the reason if a row requires more
  ReasonCode above;       // the reason if a row requires less
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
    {"shared_memory_per_block", ReasonCode::kDeviceCapabilityUnsupported, ReasonCode::kDeviceCapabilityUnsupported},
    {"l1d_bytes", ReasonCode::kDeviceCapabilityUnsupported, ReasonCode::kDeviceCapabilityUnsupported},
    {"l2_bytes", ReasonCode::kDeviceCapabilityUnsupported, ReasonCode::kDeviceCapabilityUnsupported},
    {"l3_bytes", ReasonCode::kDeviceCapabilityUnsupported, ReasonCode::kDeviceCapabilityUnsupported},
    {"roc_version", ReasonCode::kDriverVersionUnsupported, ReasonCode::kDriverVersionUnsupported},
}};

// Append only: the index is the value of "device.generation".
inline constexpr std::array<std::string_view, 15> kGpuGenerations = {"none",   "volta",     "turing", "ampere", "ada",
                                                                     "hopper", "blackwell", "cdna2",  "cdna3",  "cdna4",
                                                                     "rdna3",  "rdna4",     "gaudi2", "gaudi3", "xe2"};
// Append only: the index is the bit of "device.instruction_sets". wgmma exists on SM90 only, tcgen05 on SM100 to SM119.
inline constexpr std::array<std::string_view, 6> kGpuInstructionSets = {"wmma",    "mma_sync", "wgmma",
                                                                        "tcgen05", "mfma",     "xmx"};
inline constexpr std::array<std::string_view, 6> kPlatformNames = {"any", "cpu", "cuda", "rocm", "xpu", "hpu"};

// SM versions of one generation, both ends included. Policy keys devices.sm_to_generation and generation_to_tc_gen
// replace the default.
struct GenerationRange {
  int min_sm;
  int max_sm;
  std::string_view generation;
  int tensor_core_generation;
  bool operator==(const GenerationRange&) const = default;
};
inline constexpr auto kDefaultGenerations = std::to_array<GenerationRange>({
    {75, 79, "turing", 2},
    {80, 88, "ampere", 3},
    {89, 89, "ada", 3},
    {90, 99, "hopper", 4},
    {100, 199, "blackwell", 5},
});

// CUDA's launch limits, the same for every SM from 30 on; rows of grids compare with them.
inline constexpr int64_t kCudaMaxGridX = 2147483647;
inline constexpr int64_t kCudaMaxGridY = 65535;
inline constexpr int64_t kCudaMaxGridZ = 65535;
inline constexpr int64_t kCudaMaxGridBlocks = kCudaMaxGridX * kCudaMaxGridY;

struct Device {
  std::string name;   // "cpu", "cuda:0", "h100" (simulated)
  std::string model;  // "AMD EPYC 9575F", "NVIDIA H100 80GB HBM3"
  std::string vendor;
  std::string uuid;
  std::string arch;  // "sm_90", "gfx942", "x86-64", "aarch64"
  Platform platform = Platform::kCpu;
  bool simulated = false;
  std::array<int64_t, size_t(DeviceField::kCount)> facts = {};

  int64_t fact(DeviceField f) const { return facts[size_t(f)]; }
};

// This machine's CPU; probed on the first call.
const Device& HostCpu();
// CUDA devices that the driver reports; empty without a driver, and `why_none` then has the reason in one phrase.
// Initializes the driver: a child forked afterwards cannot use CUDA, so this is not called before a GPU is needed.
std::vector<Device> ProbeCudaDevices(std::string* why_none);
// A device file (schemas/device.schema.json). Unknown or missing keys are a ConfigError.
Result<Device> ParseDevice(std::string_view json);
// The files of devices/, which the library contains; sorted by name, read on the first call.
const std::vector<Device>& SimulatedDevices();
// nullptr if no file has that name.
const Device* FindSimulatedDevice(std::string_view name);

// Sets generation and tensor core generation from the device's SM.
void ApplyGenerations(std::span<const GenerationRange> ranges, Device* device);
// Sets the facts that follow from the SM: instruction sets, dtypes, tensor cores, graphs.
void ApplySmFacts(Device* device);

// "AVX2, AVX-512" for bits of "device.isa".
std::string IsaText(int64_t isa);
// The bits of a name of kIsaNames or kGpuInstructionSets; 0 if unknown.
int64_t IsaFromName(std::string_view name);
int64_t InstructionSetFromName(std::string_view name);
// The index in kGpuGenerations, or -1.
int GenerationFromName(std::string_view name);
// "580.65" = 580065, "13.0" = 13000, "12.8.1" = 12008; -1 if it is not a version.
int64_t VersionNumber(std::string_view text);

}  // namespace lz
