// Files made from the key table are as the table says. LZ_UPDATE_FILES=1 writes them anew:
//   LZ_UPDATE_FILES=1 build/release/bin/pipeline_test --gtest_filter='PolicyFiles.*'
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "policy/keys.h"
#include "policy/policy.h"
#include "test_paths.h"

namespace lz {
namespace {

std::string Path(const std::string& name) { return std::string(LZ_SOURCE_DIR) + "/" + name; }

std::string ReadFile(const std::string& name) {
  std::ifstream file(Path(name));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void ExpectFile(const std::string& name, const std::string& wanted) {
  if (std::getenv("LZ_UPDATE_FILES") != nullptr) std::ofstream(Path(name)) << wanted;
  EXPECT_EQ(ReadFile(name), wanted) << name << " is not as the key table says: see the first lines of this test";
}

TEST(PolicyFiles, DefaultPolicyIsTheTable) { ExpectFile("policies/default.yaml", RenderDefaultPolicy()); }

TEST(PolicyFiles, SchemaIsTheTable) { ExpectFile("schemas/policy.schema.json", RenderPolicySchema()); }

TEST(PolicyFiles, GuideHoldsTheTable) {
  constexpr std::string_view kBegin = "<!-- keys: begin -->\n", kEnd = "<!-- keys: end -->\n";
  const std::string guide = ReadFile("docs/guide/policy.md");
  const size_t begin = guide.find(kBegin), end = guide.find(kEnd);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  ExpectFile("docs/guide/policy.md", guide.substr(0, begin + kBegin.size()) + RenderPolicyTable() + guide.substr(end));
}

TEST(PolicyFiles, DefaultPolicyEqualsTheBuiltInDefaults) {
  const PolicyLayer layer{"policies/default.yaml", ReadFile("policies/default.yaml")};
  Result<Policy> policy = ParsePolicy({&layer, 1});
  ASSERT_TRUE(policy.ok()) << policy.status().Text();
  Result<Policy> built_in = ParsePolicy({});
  EXPECT_EQ(policy->settings, built_in->settings);
  EXPECT_EQ(policy->hash, built_in->hash);
  for (const PolicyKey& key : PolicyKeys()) {  // every key stands in the file
    EXPECT_TRUE(policy->origins.at(std::string(key.name)).starts_with("policies/default.yaml:")) << key.name;
  }
}

TEST(PolicyFiles, SchemaKnowsEveryKey) {
  const nlohmann::json properties = nlohmann::json::parse(ReadFile("schemas/policy.schema.json"))["properties"];
  for (const PolicyKey& key : PolicyKeys()) {
    std::string pointer("/");
    pointer.append(key.name);
    if (const size_t dot = pointer.find('.'); dot != std::string::npos) pointer.replace(dot, 1, "/properties/");
    const nlohmann::json::json_pointer at(pointer);
    ASSERT_TRUE(properties.contains(at)) << key.name;
    EXPECT_TRUE(properties[at].contains("default")) << key.name;
  }
}

// Every example of the guide is a policy that parses.
TEST(PolicyFiles, ExamplesOfTheGuideAreAccepted) {
  const std::string guide = ReadFile("docs/guide/policy.md");
  int num_examples = 0;
  for (size_t at = guide.find("```yaml\n"); at != std::string::npos; at = guide.find("```yaml\n", at + 1)) {
    const size_t begin = at + 8;
    const PolicyLayer layer{"example", guide.substr(begin, guide.find("```", begin) - begin)};
    Result<Policy> policy = ParsePolicy({&layer, 1});
    EXPECT_TRUE(policy.ok()) << layer.yaml << policy.status().Text();
    ++num_examples;
  }
  EXPECT_GE(num_examples, 3);
}

}  // namespace
}  // namespace lz
