// LAYERZERO_* variables and the layers of a process (App. 2).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "policy/policy.h"

namespace lz {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Variables = std::vector<std::pair<std::string, std::string>>;

Result<Policy> FromEnvironment(const Variables& variables, const std::string& file = "") {
  Result<PolicyLayer> layer = EnvironmentLayer(variables);
  if (!layer.ok()) return layer.TakeStatus();
  return ParsePolicy(std::vector<PolicyLayer>{{"layerzero.yaml", file}, *layer});
}

TEST(PolicyEnvironment, ReadsEachVariable) {
  Result<Policy> policy = FromEnvironment({{"PATH", "/bin"},
                                           {"LAYERZERO_DISABLED", "1"},
                                           {"LAYERZERO_LOCK_ATTENTION", "flash_attn.v3.causal"},
                                           {"LAYERZERO_LOCK_NORM_RMS", "hwy.norm.rms"},
                                           {"LAYERZERO_PREFER", "flashinfer, hwy"},
                                           {"LAYERZERO_AVOID", "xformers"},
                                           {"LAYERZERO_VERBOSE", "true"},
                                           {"LAYERZERO_DETERMINISTIC", "1"},
                                           {"LAYERZERO_DEBUG", "0"},
                                           {"LAYERZERO_CONFIG", "/x.yaml"},
                                           {"LAYERZERO_LIBRARIES", "openblas=libopenblas.so.0,onednn=/opt/a b/c.so"},
                                           {"LAYERZERO_CACHE_DIR", "/a \"b\": c"}});
  ASSERT_TRUE(policy.ok()) << policy.status().Text();
  EXPECT_FALSE(policy->enabled);
  EXPECT_TRUE(policy->log_selections);
  EXPECT_TRUE(policy->deterministic);
  EXPECT_FALSE(policy->debug);
  EXPECT_THAT(policy->prefer_sources, ElementsAre("flashinfer", "hwy"));
  EXPECT_THAT(policy->avoid_sources, ElementsAre("xformers"));
  EXPECT_EQ(policy->cache_dir, "/a \"b\": c");
  EXPECT_EQ(policy->origins.at("enabled"), "environment");
  const std::vector<std::string_view> rms = {"norm.rms"}, gqa = {"attention.gqa.decode"};
  EXPECT_EQ(LocksFor(*policy, rms).at(0).kernel, "hwy.norm.rms");
  EXPECT_FALSE(LocksFor(*policy, rms).at(0).group);
  EXPECT_EQ(LocksFor(*policy, gqa).at(0).kernel, "flash_attn.v3.causal");
  EXPECT_TRUE(LocksFor(*policy, gqa).at(0).group);
}

TEST(PolicyEnvironment, WinsOverFilesAlsoWithZero) {
  Result<Policy> policy = FromEnvironment({{"LAYERZERO_DISABLED", "0"}, {"LAYERZERO_DETERMINISTIC", "0"}},
                                          "enabled: false\ndeterministic: true\n");
  EXPECT_TRUE(policy->enabled);
  EXPECT_FALSE(policy->deterministic);
}

TEST(PolicyEnvironment, VerbosityTwoLogsSelectionsToo) {
  for (const char* level : {"1", "2"}) {
    Result<Policy> policy = FromEnvironment({{"LAYERZERO_VERBOSE", level}});
    ASSERT_TRUE(policy.ok()) << level;
    EXPECT_TRUE(policy->log_selections);
  }
}

TEST(PolicyEnvironment, EmptyMeansNotSet) {
  Result<Policy> policy = FromEnvironment(
      {{"LAYERZERO_DISABLED", ""}, {"LAYERZERO_PREFER", ""}, {"LAYERZERO_LOCK_ATTENTION", ""}}, "enabled: false\n");
  ASSERT_TRUE(policy.ok());
  EXPECT_FALSE(policy->enabled);
  EXPECT_TRUE(policy->locks.empty());
}

TEST(PolicyEnvironment, MistakesNameTheVariable) {
  const std::vector<std::tuple<const char*, const char*, const char*>> mistakes = {
      {"LAYERZERO_DISABLE", "1", "LAYERZERO_DISABLE: wanted a known variable"},
      {"LAYERZERO_DISABLE", "1", "did you mean LAYERZERO_DISABLED?"},
      {"LAYERZERO_", "", "a known variable"},
      {"LAYERZERO_DISABLED", "maybe", "LAYERZERO_DISABLED: wanted 0 or 1, got 'maybe'"},
      {"LAYERZERO_LIBRARIES", "openblas", "LAYERZERO_LIBRARIES: wanted source=path, comma-separated, got 'openblas'"},
      {"LAYERZERO_LIBRARIES", "onednn=a,openblas=", "got 'openblas='"},
      {"LAYERZERO_LIBRARIES", "a.b=c", "as openblas=libopenblas.so.0"},
      {"LAYERZERO_VERBOSE", "3", "wanted 0, 1 or 2, got '3'"},
      {"LAYERZERO_DEBUG", "2", "wanted 0 or 1, got '2'"},
      {"LAYERZERO_PREFER", "a,,b", "LAYERZERO_PREFER: wanted library names, comma-separated"},
      {"LAYERZERO_AVOID", "flash_attn.v3", "LAYERZERO_AVOID: wanted library names"},
      {"LAYERZERO_LOCK_", "a.b", "LAYERZERO_LOCK_<OPERATION>"},
      {"LAYERZERO_LOCK_NORM_RMS", "two words", "LAYERZERO_LOCK_NORM_RMS: wanted a kernel id, got 'two words'"},
      {"LAYERZERO_LOCK_NORM_RMS", "a.*", "wanted a kernel id"},
      {"LAYERZERO_PIPELINES", "2", "wanted 0 or 1, got '2'"},
      {"LAYERZERO_SPECULATIVE", "0", "not supported in this version, see docs/roadmap.md"},
      {"LAYERZERO_CACHE_DIR", "\xff", "a path in UTF-8"},
  };
  for (const auto& [name, value, message] : mistakes) {
    Result<Policy> policy = FromEnvironment({{name, value}});
    ASSERT_FALSE(policy.ok()) << name;
    EXPECT_EQ(policy.status().code(), StatusCode::kConfig);
    EXPECT_THAT(policy.status().Text(), HasSubstr(message)) << name;
  }
}

// A folder of its own as working directory and home; everything is put back.
class ProcessLayersTest : public testing::Test {
 protected:
  void SetUp() override {
    old_folder_ = std::filesystem::current_path();
    if (const char* home = std::getenv("HOME")) old_home_ = home;
    folder_ = std::filesystem::temp_directory_path() / ("lz_policy_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_ / "home/.cache/layerzero");
    std::filesystem::create_directories(folder_ / "project");
    std::filesystem::current_path(folder_ / "project");
    setenv("HOME", (folder_ / "home").c_str(), 1);
    if (const char* caches = std::getenv("XDG_CACHE_HOME")) old_caches_ = caches;
    unsetenv("XDG_CACHE_HOME");
  }
  void TearDown() override {
    std::filesystem::current_path(old_folder_);
    setenv("HOME", old_home_.c_str(), 1);
    unsetenv("XDG_CACHE_HOME");
    if (!old_caches_.empty()) setenv("XDG_CACHE_HOME", old_caches_.c_str(), 1);
    for (const char* name : {"LAYERZERO_CONFIG", "LAYERZERO_CACHE_DIR", "LAYERZERO_DETERMINISTIC", "LAYERZERO_TYPO"}) {
      unsetenv(name);
    }
    std::filesystem::remove_all(folder_);
  }
  void Write(const char* path, const std::string& text) { std::ofstream(folder_ / path) << text; }
  static Result<Policy> Load() {
    Result<std::vector<PolicyLayer>> layers = ProcessLayers();
    if (!layers.ok()) return layers.TakeStatus();
    return ParsePolicy(*layers);
  }

  std::filesystem::path folder_, old_folder_;
  std::string old_home_, old_caches_;
};

TEST_F(ProcessLayersTest, NothingThereGivesDefaultsAndTheHome) {
  Result<Policy> policy = Load();
  ASSERT_TRUE(policy.ok()) << policy.status().Text();
  EXPECT_EQ(policy->cache_dir, (folder_ / "home/.cache/layerzero").string());
  EXPECT_EQ(policy->origins.at("cache_dir"), "default");
  EXPECT_EQ(policy->hash, ParsePolicy({})->hash);
}

TEST_F(ProcessLayersTest, CachesOfTheDesktopStandard) {
  std::filesystem::create_directories(folder_ / "caches/layerzero");
  Write("caches/layerzero/config.yaml", "strict_mode: true\n");
  setenv("XDG_CACHE_HOME", (folder_ / "caches").c_str(), 1);
  EXPECT_EQ(Load()->cache_dir, (folder_ / "caches/layerzero").string());
  EXPECT_TRUE(Load()->strict_mode);
  setenv("XDG_CACHE_HOME", "relative", 1);  // the standard: ignored
  EXPECT_EQ(Load()->cache_dir, (folder_ / "home/.cache/layerzero").string());
}

TEST_F(ProcessLayersTest, ATildeIsTheHome) {
  Write("project/layerzero.yaml", "cache_dir: ~/caches\nperfdb:\n  path: ~/times.sqlite\nmetrics:\n  file: \"\"\n");
  EXPECT_EQ(Load()->cache_dir, (folder_ / "home/caches").string());
  EXPECT_EQ(Load()->perfdb_path, (folder_ / "home/times.sqlite").string());
  std::filesystem::create_directories(folder_ / "home/other");
  Write("home/other/config.yaml", "strict_mode: true\n");
  setenv("LAYERZERO_CACHE_DIR", "~/other", 1);
  EXPECT_EQ(Load()->cache_dir, (folder_ / "home/other").string());
  EXPECT_TRUE(Load()->strict_mode);
}

TEST_F(ProcessLayersTest, WithoutHomeTheSystemKnowsTheHome) {
  unsetenv("HOME");
  EXPECT_EQ(Load()->cache_dir, std::string(getpwuid(getuid())->pw_dir) + "/.cache/layerzero");
}

TEST_F(ProcessLayersTest, EnvironmentThenProjectThenUser) {
  Write("home/.cache/layerzero/config.yaml", "deterministic: true\nstrict_mode: true\nprefer_tolerance: 0.1\n");
  EXPECT_EQ(Load()->prefer_tolerance, 0.1);
  Write("project/layerzero.yaml", "deterministic: false\nprefer_tolerance: 0.2\n");
  EXPECT_EQ(Load()->prefer_tolerance, 0.2);
  EXPECT_FALSE(Load()->deterministic);
  setenv("LAYERZERO_DETERMINISTIC", "1", 1);
  EXPECT_TRUE(Load()->deterministic);
  EXPECT_TRUE(Load()->strict_mode);
  EXPECT_EQ(Load()->origins.at("prefer_tolerance"), "layerzero.yaml:2");
  EXPECT_EQ(Load()->origins.at("strict_mode"), (folder_ / "home/.cache/layerzero/config.yaml:2").string());
}

TEST_F(ProcessLayersTest, VariablesNameTheFiles) {
  Write("project/layerzero.yaml", "memory_headroom_mb: 2\n");
  Write("other.yaml", "cache: {max_size: 5}\n");
  Write("home/config.yaml", "strict_mode: true\n");
  setenv("LAYERZERO_CONFIG", (folder_ / "other.yaml").c_str(), 1);
  setenv("LAYERZERO_CACHE_DIR", (folder_ / "home").c_str(), 1);
  Result<Policy> policy = Load();
  ASSERT_TRUE(policy.ok()) << policy.status().Text();
  EXPECT_EQ(policy->memory_headroom_mb, 1024);
  EXPECT_EQ(policy->cache_max_size, 5);
  EXPECT_TRUE(policy->strict_mode);
  EXPECT_EQ(policy->cache_dir, (folder_ / "home").string());
}

TEST_F(ProcessLayersTest, AnotherProjectFileReplacesItWhateverItsName) {
  Write("project/layerzero.yaml", "memory_headroom_mb: 2\n");
  Write("mine.yaml", "no_such_key: 1\n");
  Write("other.yaml", "cache: {max_size: 5}\n");
  for (const bool named : {false, true}) {  // what it replaces need not be right
    if (named) setenv("LAYERZERO_CONFIG", (folder_ / "mine.yaml").c_str(), 1);
    Result<std::vector<PolicyLayer>> layers = ProcessLayers((folder_ / "other.yaml").string());
    ASSERT_TRUE(layers.ok()) << layers.status().Text();
    Result<Policy> policy = ParsePolicy(*layers);
    ASSERT_TRUE(policy.ok()) << policy.status().Text();
    EXPECT_EQ(policy->memory_headroom_mb, 1024);
    EXPECT_EQ(policy->cache_max_size, 5);
  }
  EXPECT_FALSE(ProcessLayers((folder_ / "missing.yaml").string()).ok());
}

TEST_F(ProcessLayersTest, FilesThatCannotBeReadAreErrors) {
  setenv("LAYERZERO_CONFIG", (folder_ / "missing.yaml").c_str(), 1);
  EXPECT_THAT(Load().status().Text(), HasSubstr("missing.yaml: wanted a readable policy file"));
  setenv("LAYERZERO_CONFIG", folder_.c_str(), 1);
  EXPECT_THAT(Load().status().Text(), HasSubstr("wanted a readable policy file"));
  Write("large.yaml", std::string((1 << 20) + 10, '#'));
  setenv("LAYERZERO_CONFIG", (folder_ / "large.yaml").c_str(), 1);
  EXPECT_THAT(Load().status().Text(), HasSubstr("at most 1048576 bytes"));
  unsetenv("LAYERZERO_CONFIG");
  setenv("LAYERZERO_TYPO", "1", 1);
  EXPECT_THAT(Load().status().Text(), HasSubstr("LAYERZERO_TYPO: wanted a known variable"));
}

}  // namespace
}  // namespace lz
