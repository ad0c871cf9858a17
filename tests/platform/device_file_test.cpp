// Device files: every shipped one parses and agrees with the generation table; wrong ones are refused with the place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/json_reader.h"
#include "platform/device.h"
#include "test_paths.h"

namespace lz {
namespace {

using ::testing::HasSubstr;

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}
nlohmann::json Shipped(const std::string& name) {
  return nlohmann::json::parse(ReadText(std::filesystem::path(LZ_SOURCE_DIR) / "devices" / (name + ".json")));
}
std::string Refusal(const std::string& text) {
  auto device = ParseDevice(text);
  return device.ok() ? "" : device.status().Text();
}

TEST(DeviceFile, EveryShippedFileParsesAndIsCarriedByTheLibrary) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(LZ_SOURCE_DIR) / "devices")) {
    if (!entry.is_regular_file()) continue;  // measured records of kinds of machines lie beside them
    auto device = ParseDevice(ReadText(entry.path()));
    ASSERT_TRUE(device.ok()) << entry.path() << ": " << device.status().Text();
    EXPECT_EQ(device->name, entry.path().stem().string());
    EXPECT_TRUE(device->simulated);
    const Device* carried = FindSimulatedDevice(device->name);
    ASSERT_NE(carried, nullptr) << device->name;
    EXPECT_EQ(carried->facts, device->facts);
    EXPECT_EQ(carried->model, device->model);
    ++files;
  }
  EXPECT_EQ(SimulatedDevices().size(), files);
  EXPECT_GE(files, 13u);
  EXPECT_EQ(FindSimulatedDevice("no_such_device"), nullptr);
}

TEST(DeviceFile, CudaFilesAgreeWithWhatFollowsFromTheirSm) {
  for (const Device& device : SimulatedDevices()) {
    if (device.platform != Platform::kCuda) continue;
    SCOPED_TRACE(device.name);
    Device derived = device;
    ApplySmFacts(&derived);
    ApplyGenerations(kDefaultGenerations, &derived);
    EXPECT_EQ(derived.facts, device.facts);
    EXPECT_EQ(device.arch, "sm_" + std::to_string(device.fact(DeviceField::kSm)));
    EXPECT_EQ(device.fact(DeviceField::kMaxGridX), kCudaMaxGridX);
    EXPECT_EQ(device.fact(DeviceField::kMaxGridY), kCudaMaxGridY);
    EXPECT_EQ(device.fact(DeviceField::kMaxGridZ), kCudaMaxGridZ);
  }
}

TEST(DeviceFile, Sm120HasNeitherWgmmaNorTcgen05) {
  const int64_t wgmma = InstructionSetFromName("wgmma"), tcgen05 = InstructionSetFromName("tcgen05.mma");
  const auto sets = [](const char* name) { return FindSimulatedDevice(name)->fact(DeviceField::kInstructionSets); };
  EXPECT_EQ(sets("rtx5090") & (wgmma | tcgen05), 0);
  EXPECT_EQ(sets("b200") & (wgmma | tcgen05), tcgen05);
  EXPECT_EQ(sets("h100") & (wgmma | tcgen05), wgmma);
}

TEST(DeviceFile, GenerationTableIsInclusiveAndReplaceable) {
  const auto generation = [](int64_t sm) {
    Device device;
    device.facts[size_t(DeviceField::kSm)] = sm;
    ApplyGenerations(kDefaultGenerations, &device);
    return std::string(kGpuGenerations[size_t(device.fact(DeviceField::kGeneration))]) + " " +
           std::to_string(device.fact(DeviceField::kTensorCoreGeneration));
  };
  EXPECT_EQ(generation(70), "none 0");
  EXPECT_EQ(generation(75), "turing 2");
  EXPECT_EQ(generation(86), "ampere 3");
  EXPECT_EQ(generation(87), "ampere 3");
  EXPECT_EQ(generation(88), "ampere 3");
  EXPECT_EQ(generation(89), "ada 3");
  EXPECT_EQ(generation(90), "hopper 4");
  EXPECT_EQ(generation(99), "hopper 4");
  EXPECT_EQ(generation(100), "blackwell 5");
  EXPECT_EQ(generation(121), "blackwell 5");
  EXPECT_EQ(generation(200), "none 0");
  constexpr auto kOther = std::to_array<GenerationRange>({{89, 89, "ada", 4}});
  Device device;
  device.facts[size_t(DeviceField::kSm)] = 89;
  ApplyGenerations(kOther, &device);
  EXPECT_EQ(device.fact(DeviceField::kTensorCoreGeneration), 4);
}

TEST(DeviceFile, RefusesAndSaysWhere) {
  struct Case {
    const char* what;
    void (*break_it)(nlohmann::json*);
    const char* place;
  };
  const auto cases = std::to_array<Case>({
      {"unknown key", [](nlohmann::json* d) { (*d)["colour"] = 1; }, "h100: colour"},
      {"unknown fact", [](nlohmann::json* d) { (*d)["facts"]["warp_size"] = 32; }, "facts.warp_size"},
      {"missing fact", [](nlohmann::json* d) { (*d)["facts"].erase("sm"); }, "facts.sm"},
      {"missing name", [](nlohmann::json* d) { d->erase("name"); }, "name"},
      {"missing sources", [](nlohmann::json* d) { d->erase("sources"); }, "sources"},
      {"missing facts", [](nlohmann::json* d) { d->erase("facts"); }, "facts"},
      {"other version", [](nlohmann::json* d) { (*d)["schema_version"] = "2.0"; }, "schema_version"},
      {"fact of another platform", [](nlohmann::json* d) { (*d)["facts"]["l3_bytes"] = 1; }, "facts.l3_bytes"},
      {"negative", [](nlohmann::json* d) { (*d)["facts"]["num_cores"] = -1; }, "facts.num_cores"},
      {"fraction", [](nlohmann::json* d) { (*d)["facts"]["num_cores"] = 1.5; }, "facts.num_cores"},
      {"text for a number", [](nlohmann::json* d) { (*d)["facts"]["sm"] = "90"; }, "facts.sm"},
      {"number for a boolean", [](nlohmann::json* d) { (*d)["facts"]["supports_fp8"] = 1; }, "facts.supports_fp8"},
      {"unknown generation", [](nlohmann::json* d) { (*d)["facts"]["generation"] = "fermi"; }, "facts.generation"},
      {"unknown instruction set", [](nlohmann::json* d) { (*d)["facts"]["instruction_sets"] = {"x87"}; },
       "facts.instruction_sets"},
      {"no version", [](nlohmann::json* d) { (*d)["facts"]["cuda_version"] = "thirteen"; }, "facts.cuda_version"},
      {"unknown platform", [](nlohmann::json* d) { (*d)["platform"] = "tpu"; }, "platform"},
  });
  for (const Case& c : cases) {
    nlohmann::json document = Shipped("h100");
    c.break_it(&document);
    EXPECT_THAT(Refusal(document.dump()), HasSubstr(c.place)) << c.what;
  }
}

TEST(DeviceFile, RefusesTextThatIsNoBoundedJson) {
  EXPECT_THAT(Refusal("{\n\"name\": \"x\",\n oops}"), HasSubstr("device file:3"));
  EXPECT_THAT(Refusal("[]"), HasSubstr("an object"));
  EXPECT_THAT(Refusal(""), HasSubstr("JSON"));
  EXPECT_THAT(Refusal("{\"name\":\"a\",\"name\":\"b\"}"), HasSubstr("twice"));
  EXPECT_THAT(Refusal(std::string(100, '[') + std::string(100, ']')), HasSubstr("levels"));
  EXPECT_THAT(Refusal("{\"name\":\"" + std::string(70000, 'x') + "\"}"), HasSubstr("bytes"));
  EXPECT_THAT(Refusal("{\"name\":\"\xff\"}"), HasSubstr("JSON"));
}

TEST(Version, OrdersAsNumbers) {
  EXPECT_EQ(VersionNumber("580.65.06"), 580065);
  EXPECT_EQ(VersionNumber("13.0"), 13000);
  EXPECT_EQ(VersionNumber("520"), 520000);
  EXPECT_LT(VersionNumber("535.54"), VersionNumber("535.154"));
  EXPECT_LT(VersionNumber("9.2"), VersionNumber("12.0"));
  EXPECT_EQ(VersionNumber(""), -1);
  EXPECT_EQ(VersionNumber("12."), -1);
  EXPECT_EQ(VersionNumber("x"), -1);
  EXPECT_EQ(VersionNumber("99999999999999999999"), -1);
}

TEST(Isa, NamesAndText) {
  EXPECT_EQ(IsaText(0), "none");
  EXPECT_EQ(IsaText(kIsaAvx2 | kIsaAvx512), "AVX2, AVX-512");
  EXPECT_EQ(IsaFromName("amx_bf16"), kIsaAmxBf16);
  EXPECT_EQ(IsaFromName("mmx"), 0);
}

}  // namespace
}  // namespace lz
