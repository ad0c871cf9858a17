// Every row of every shipped descriptor names a field of its operation: the backends register as a whole.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "registry/descriptor.h"
#include "registry/registry.h"
#include "test_paths.h"

namespace lz {
namespace {

TEST(ShippedBackends, RegisterBesideTheBuiltInKernels) {
  Registry registry;
  ASSERT_TRUE(registry.startup().ok()) << registry.startup().Text();
  const size_t built_in = registry.num_kernels();
  size_t described = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(LZ_SOURCE_DIR) / "python/layerzero/backends")) {
    std::ifstream file(entry.path() / "capabilities.json");
    if (!file) continue;
    std::stringstream text;
    text << file.rdbuf();
    auto descriptor = ParseDescriptor(text.str(), entry.path().filename().string(), registry);
    ASSERT_TRUE(descriptor.ok()) << descriptor.status().Text();
    std::vector<Registry::Registration> rows;
    for (const DescribedKernel& k : descriptor->kernels)
      rows.push_back({&k.spec, Availability(), std::string(k.adapter)});
    const Status status = registry.Register(rows);
    EXPECT_TRUE(status.ok()) << entry.path() << ": " << status.Text();
    described += rows.size();
  }
  EXPECT_GT(described, 60u);
  EXPECT_EQ(registry.num_kernels(), built_in + described);
  const KernelEntry* flash = registry.FindKernel("attention.gqa.decode", "torch.sdpa.flash");
  ASSERT_NE(flash, nullptr);
  EXPECT_EQ(flash->source, "torch");
  EXPECT_EQ(registry.FindKernel("attention.gqa.decode", "torch.sdpa.efficient"), nullptr);
}

}  // namespace
}  // namespace lz
