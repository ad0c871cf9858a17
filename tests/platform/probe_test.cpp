// The probes of this machine: the CPU's answer against the kernel's own list of flags, CUDA's against its driver file.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "platform/device.h"

namespace lz {
namespace {

#if defined(__x86_64__)
TEST(HostCpu, AgreesWithTheOperatingSystemsFlags) {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; std::getline(file, line) && flags.empty();) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
  }
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo has no flags";
  const int64_t isa = HostCpu().fact(DeviceField::kIsa);
  const auto expect = [&](IsaBit bit, std::initializer_list<const char*> names) {
    bool all = true;
    for (const char* name : names) all = all && flags.count(name);
    EXPECT_EQ((isa & bit) != 0, all) << IsaText(bit);
  };
  expect(kIsaSse42, {"sse4_2"});
  expect(kIsaAvx2, {"avx2", "fma", "f16c"});
  expect(kIsaAvx512, {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"});
  expect(kIsaAvx512Vnni, {"avx512_vnni"});
  expect(kIsaAvx512Bf16, {"avx512_bf16"});
  expect(kIsaAvx512Fp16, {"avx512_fp16"});
  expect(kIsaAvx512Vbmi, {"avx512vbmi"});
  expect(kIsaAmxBf16, {"amx_tile", "amx_bf16"});
  expect(kIsaAmxInt8, {"amx_tile", "amx_int8"});
  EXPECT_EQ(isa & (kIsaNeon | kIsaSve), 0);
}
#endif

TEST(HostCpu, HasANameCoresMemoryAndCaches) {
  const Device& cpu = HostCpu();
  EXPECT_EQ(cpu.name, "cpu");
  EXPECT_EQ(cpu.platform, Platform::kCpu);
  EXPECT_FALSE(cpu.simulated);
  EXPECT_FALSE(cpu.model.empty());
  EXPECT_FALSE(cpu.vendor.empty());
  EXPECT_EQ(cpu.fact(DeviceField::kPlatform), int64_t(Platform::kCpu));
  EXPECT_GE(cpu.fact(DeviceField::kNumCores), 1);
  EXPECT_GE(cpu.fact(DeviceField::kMemoryBytes), int64_t{64} << 20);
  EXPECT_EQ(&HostCpu(), &cpu);
}

TEST(ProbeCudaDevices, SaysWhyThereIsNoneOrDescribesEachDevice) {
  std::string why = "stale";
  const std::vector<Device> devices = ProbeCudaDevices(&why);
  if (devices.empty()) {
    EXPECT_FALSE(why.empty());
    EXPECT_NE(why, "stale");
    if (!std::filesystem::exists("/proc/driver/nvidia/version")) {
      EXPECT_TRUE(ProbeCudaDevices(nullptr).empty());
    }
    return;
  }
  for (const Device& device : devices) {
    SCOPED_TRACE(device.model);
    EXPECT_EQ(device.platform, Platform::kCuda);
    EXPECT_GE(device.fact(DeviceField::kSm), 30);
    EXPECT_EQ(device.fact(DeviceField::kMaxGridX), kCudaMaxGridX);
    EXPECT_EQ(device.fact(DeviceField::kMaxGridY), kCudaMaxGridY);
    EXPECT_EQ(device.fact(DeviceField::kMaxGridZ), kCudaMaxGridZ);
    EXPECT_GT(device.fact(DeviceField::kDriverVersion), 400000);
    EXPECT_GE(device.fact(DeviceField::kCudaVersion), 11000);
    EXPECT_GT(device.fact(DeviceField::kNumCores), 0);
    EXPECT_GT(device.fact(DeviceField::kMemoryBytes), 0);
    EXPECT_EQ(device.uuid.size(), 40u);
  }
}

}  // namespace
}  // namespace lz
