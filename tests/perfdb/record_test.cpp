// Measured records: valid files survive reading and writing, invalid ones are refused with the place and the reason.
#include "perfdb/record.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "test_paths.h"

namespace lz::perfdb {
namespace {

using testing::HasSubstr;

std::string File(const std::string& name) {
  std::ifstream file(std::string(LZ_SOURCE_DIR) + "/tests/perfdb/records/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Records, AValidFileIsReadAndWrittenAgain) {
  auto records = ReadRecords(File("valid.json"), "valid.json");
  ASSERT_TRUE(records.ok()) << records.status().Text();
  ASSERT_EQ(records->size(), 2u);
  const Record &cpu = (*records)[0], &gpu = (*records)[1];
  EXPECT_EQ(cpu.axes.at("hidden"), 576);
  EXPECT_EQ(cpu.options.at("weight"), "given");
  EXPECT_FALSE(cpu.is_causal.has_value());
  EXPECT_TRUE(cpu.valid);
  EXPECT_EQ(gpu.num_kv_heads, 8);
  EXPECT_EQ(gpu.is_causal, true);
  EXPECT_DOUBLE_EQ(*gpu.warmup_ms, 35.5);
  EXPECT_FALSE(gpu.valid);
  const std::string written = WriteRecords(*records);
  auto again = ReadRecords(written, "again");
  ASSERT_TRUE(again.ok()) << again.status().Text();
  EXPECT_EQ(WriteRecords(*again), written);
}

TEST(Records, InvalidFilesAreRefusedWithTheReason) {
  const auto all = nlohmann::json::parse(File("invalid.json"));
  for (const auto& [name, one] : all.items()) {
    const auto records = ReadRecords(one["document"].dump(), "file");
    ASSERT_FALSE(records.ok()) << name;
    EXPECT_EQ(records.status().code(), StatusCode::kConfig) << name;
    EXPECT_THAT(records.status().Text(), HasSubstr(one["message"].get<std::string>())) << name;
  }
  EXPECT_GE(all.size(), 15u);
}

TEST(Records, HostileTextsAreBounded) {
  const std::string deep = R"({"schema_version":"1.0","records":[)" + std::string(100000, '[');
  for (const std::string& text : {deep, std::string(), std::string("{"), std::string((16 << 20) + 1, ' ')}) {
    EXPECT_FALSE(ReadRecords(text, "file").ok());
  }
  EXPECT_TRUE(ReadRecords(R"({"schema_version": "1.0", "records": []})", "file").ok());
  EXPECT_EQ(WriteRecords({}), "{\"schema_version\": \"1.0\", \"records\": []}\n");
}

// The same kernel, device and sizes under another condition, or in another run, is another record.
TEST(Records, TheKeyIsWhatWasMeasuredAndHow) {
  auto records = ReadRecords(File("valid.json"), "valid.json");
  ASSERT_TRUE(records.ok());
  const auto with = [&](auto change) {
    std::vector<Record> two{(*records)[0], (*records)[0]};
    change(two[1]);
    return ReadRecords(WriteRecords(two), "two").ok();
  };
  EXPECT_FALSE(with([](Record& r) { r.median_us = r.p95_us = 1e6; }));
  EXPECT_FALSE(with([](Record& r) { r.build_id = "another"; }));
  EXPECT_TRUE(with([](Record& r) { r.driver_version = "1"; }));  // another run
  EXPECT_TRUE(with([](Record& r) { r.backend_version = "1"; }));
  EXPECT_TRUE(with([](Record& r) { r.cache_state = "cold"; }));
  EXPECT_TRUE(with([](Record& r) { r.execution = "graph"; }));
  EXPECT_TRUE(with([](Record& r) { r.axes["hidden"] = 577; }));
  EXPECT_TRUE(with([](Record& r) { r.options.clear(); }));
  EXPECT_TRUE(with([](Record& r) { r.quant_format = "mxfp4"; }));
}

}  // namespace
}  // namespace lz::perfdb
