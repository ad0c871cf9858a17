// C++ plugins: the example loads and is selected under a lock; every faulty library or descriptor is refused by name.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/signature.h"
#include "base/trusted_file.h"
#include "engine/engine.h"
#include "layerzero/layerzero.h"
#include "registry/descriptor.h"
#include "test_paths.h"

namespace lz {
namespace {

const std::string kLibraries = LZ_BINARY_DIR "/plugins/";
const std::string kGood = kLibraries + "libplugin_good.so";
const std::string kRules = LZ_SOURCE_DIR "/examples/plugin/capabilities.json";

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The example's descriptor with one text replaced.
std::string Edited(const std::string& from, const std::string& to) {
  std::string text = Read(kRules);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const std::string path = testing::TempDir() + "edited-" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << text;
  return path;
}

// Refused with `code`, naming `part`, and nothing is registered.
void ExpectRefused(const std::string& library, const std::string& rules, StatusCode code, const std::string& part) {
  Engine& engine = Engine::Get();
  const size_t before = engine.selector().registry().num_kernels();
  const Status status = engine.LoadPlugin(library, rules);
  ASSERT_FALSE(status.ok()) << library << " " << rules;
  EXPECT_EQ(int(status.code()), int(code)) << status.Text();
  EXPECT_NE(status.Text().find(part), std::string::npos) << status.Text();
  EXPECT_EQ(engine.selector().registry().num_kernels(), before);
}

TEST(Plugin, RefusesFaultyTables) {
  const auto faulty = [](int n) { return kLibraries + "libplugin_faulty_" + std::to_string(n) + ".so"; };
  ExpectRefused(faulty(1), kRules, StatusCode::kConfig, "lz_plugin_descriptor");
  ExpectRefused(faulty(2), kRules, StatusCode::kVersionMismatch, "ABI major 1, got 2");
  ExpectRefused(faulty(3), kRules, StatusCode::kVersionMismatch, "lz_plugin.size");
  ExpectRefused(faulty(4), kRules, StatusCode::kVersionMismatch, "lz_plugin_kernel.size");
  ExpectRefused(faulty(5), kRules, StatusCode::kConfig, "launch");
  ExpectRefused(faulty(6), kRules, StatusCode::kConfig, "example.norm.other");
  ExpectRefused(faulty(7), kRules, StatusCode::kConfig, "NULL");
  ExpectRefused(faulty(8), kRules, StatusCode::kConfig, "again");
}

TEST(Plugin, RefusesAKernelWhoseResultsAreWrong) {
  ExpectRefused(kLibraries + "libplugin_faulty_9.so", kRules, StatusCode::kConfig, "within the contract's tolerance");
}

TEST(Plugin, RefusesFilesThatAreNotThereOrNotLibraries) {
  ExpectRefused("/nonexistent.so", kRules, StatusCode::kNotInstalled, "/nonexistent.so");
  ExpectRefused(kGood, "/nonexistent.json", StatusCode::kNotInstalled, "/nonexistent.json");
  ExpectRefused(kRules, kRules, StatusCode::kNotInstalled, "a shared library that loads");
}

TEST(Plugin, RefusesFaultyDescriptors) {
  ExpectRefused(kGood, Edited("\"backend\":", "\"library_sha256\": \"" + std::string(64, '0') + "\", \"backend\":"),
                StatusCode::kConfig, "SHA-256");
  ExpectRefused(kGood, Edited("\"backend\":", "\"library_sha256\": \"12\", \"backend\":"), StatusCode::kConfig,
                "library_sha256");
  ExpectRefused(kGood, Edited("\"backend\":", "\"signature\": \"x\", \"backend\":"), StatusCode::kConfig, "signature");
  ExpectRefused(kGood, Edited("weight.same_dtype", "weight.no_such_fact"), StatusCode::kConfig, "no_such_fact");
  ExpectRefused(kGood, Edited("\"==\"", "\"~~\""), StatusCode::kConfig, "relation");
  ExpectRefused(kGood, Edited("\"norm.rms\": [", "\"norm.layer\": ["), StatusCode::kConfig, "norm.rms");
  ExpectRefused(kGood, Edited("example.norm.rms", "example.norm.second"), StatusCode::kConfig, "example.norm.rms");
  ExpectRefused(kGood, Edited("\"deterministic\": true,", "\"adapter\": \"m:f\","), StatusCode::kConfig, "adapter");
  ExpectRefused(kGood, Edited("\"1.0\"", "\"9.0\""), StatusCode::kConfig, "schema_version");
}

TEST(Plugin, LoadsOnceAndRunsUnderALock) {
  const std::string digest = Sha256Hex(Read(kGood));
  auto api = layerzero::Api::Get();
  const auto loaded =
      api->LoadPlugin(kGood, Edited("\"backend\":", "\"library_sha256\": \"" + digest + "\", \"backend\":"));
  ASSERT_TRUE(loaded.ok()) << loaded.text();
  ExpectRefused(kGood, kRules, StatusCode::kConfig, "registered already");

  std::vector<float> x(2 * 16), y(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i) - 7;
  const layerzero::TensorRef input(x.data(), {2, 16}), output(y.data(), {2, 16});
  auto op = api->Find("rms_norm");
  auto call = op->Prepare({{"input", input}, {"weight_offset", 1.0}, {"output", output}});
  ASSERT_TRUE(call.ok());
  auto scope = api->PolicyScope(R"({"locks": {"norm.rms": "example.norm.rms"}})");
  ASSERT_TRUE(scope.ok()) << scope.status().text();
  call->SetPolicy(*scope);
  const auto status = call->Run();
  ASSERT_TRUE(status.ok()) << status.text();
  auto id = call->KernelId();
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(*id, "example.norm.rms");
  double sum = 0;
  for (size_t i = 0; i < 16; ++i) sum += double(x[i]) * x[i];
  EXPECT_NEAR(y[3], x[3] / std::sqrt(sum / 16 + 1e-6) * 2, 1e-5);

  // Its rules hold: float64 is refused, with the reason.
  std::vector<double> wide(16), result(16);
  auto other = op->Prepare({{"input", layerzero::TensorRef(wide.data(), {1, 16})},
                            {"output", layerzero::TensorRef(result.data(), {1, 16})}});
  ASSERT_TRUE(other.ok());
  other->SetPolicy(*scope);
  EXPECT_EQ(other->Run().code(), LZ_NO_KERNEL);
}

bool IsLoaded() { return Engine::Get().selector().registry().FindKernel("norm.rms", "example.norm.rms"); }

// With a digest or signature the library is not opened by its path, where another file may be by then.
TEST(Plugin, LoadsTheBytesThatWereChecked) {
  if (IsLoaded()) GTEST_SKIP() << "by another test of this process";
  const std::string digest = Sha256Hex(Read(kGood));
  const Status loaded =
      Engine::Get().LoadPlugin(kGood, Edited("\"backend\":", "\"library_sha256\": \"" + digest + "\", \"backend\":"));
  ASSERT_TRUE(loaded.ok()) << loaded.Text();
  const std::string maps = Read("/proc/self/maps");
  EXPECT_NE(maps.find("memfd:layerzero-plugin"), std::string::npos);
  EXPECT_EQ(maps.find("libplugin_good.so"), std::string::npos);
  EXPECT_NE(Engine::Get().selector().registry().FindKernel("norm.rms", "example.norm.rms"), nullptr);
}

TEST(Plugin, RefusesFilesThatOthersCanWrite) {
  const std::string rules = Edited("\"1.0\"", "\"1.0\"");
  ASSERT_EQ(chmod(rules.c_str(), 0666), 0);
  ExpectRefused(kGood, rules, StatusCode::kUntrustedFile, "chmod go-w '" + rules + "'");
  const std::string library = testing::TempDir() + "open-" + std::to_string(getpid()) + ".so";
  std::ofstream(library, std::ios::binary) << Read(kGood);
  ASSERT_EQ(chmod(library.c_str(), 0777), 0);
  ExpectRefused(library, kRules, StatusCode::kUntrustedFile, "chmod go-w '" + library + "'");
  unlink(library.c_str());
  unlink(rules.c_str());
}

TEST(Plugin, NeedsSignaturesIfThePolicySaysSo) {
  if (IsLoaded()) GTEST_SKIP() << "by another test of this process";
  Engine& engine = Engine::Get();
  const KeyPair pair = NewKeyPair();
  const std::string rules = Edited("\"1.0\"", "\"1.0\""), library = rules + ".so";
  std::ofstream(library, std::ios::binary) << Read(kGood);
  const auto write_signature = [&](const std::string& path, const std::string& of) {
    std::ofstream(path + ".sig") << *Sign(of, pair.pem, "key");
  };
  ASSERT_TRUE(engine
                  .Configure(R"({"security": {"require_signatures": "plugins", "trusted_keys": [")" + pair.public_key +
                             R"("]}})")
                  .ok());
  ExpectRefused(library, rules, StatusCode::kUntrustedFile, "layerzero sign '" + rules + "'");
  write_signature(rules, Read(rules));
  ExpectRefused(library, rules, StatusCode::kUntrustedFile, "layerzero sign '" + library + "'");
  write_signature(library, Read(rules));
  ExpectRefused(library, rules, StatusCode::kUntrustedFile, "the file that was signed");
  write_signature(library, Read(library));
  const Status loaded = engine.LoadPlugin(library, rules);
  EXPECT_TRUE(loaded.ok()) << loaded.Text();
  ASSERT_TRUE(engine.Configure(R"({"security": {"require_signatures": "none"}})").ok());
  for (const std::string& path : {rules, library}) {
    unlink(path.c_str());
    unlink((path + ".sig").c_str());
  }
}

}  // namespace
}  // namespace lz
