// Measured times in force: they decide between kernels, class by class, and only where the policy lets them.
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "engine/engine.h"
#include "perfdb/session.h"
#include "pipeline/request_facts.h"
#include "tests/perfdb/rows.h"
#include "verify/case.h"

namespace lz {
namespace {

int32_t Works(const lz_kernel_args*) { return 0; }

class EnginePrior : public testing::Test {
 protected:
  Engine& engine = Engine::Get();

  static void SetUpTestSuite() {
    static constexpr std::array<std::string_view, 1> kWeight = {"weight"};
    for (const auto& [id, priority] : {std::pair{"a.k", 95}, std::pair{"b.k", 94}}) {
      const KernelSpec spec = {.id = id,
                               .operation = "norm.rms",
                               .platform = Platform::kAny,
                               .dtypes = kFloats,
                               .accepts = kWeight,
                               .strides = Strides::kAny,
                               .priority = priority,
                               .cuda_graph_safe = true,
                               .launch = &Works};
      const Registry::Registration one{&spec, {}, {}};
      ASSERT_TRUE(Engine::Get().selector().registry().Register({&one, 1}).ok());
    }
  }
  void TearDown() override { (void)engine.UsePrior(File({}), "none"); }

  struct Row {
    const char* kernel;
    int64_t hidden;
    double us;
    const char* execution = "eager";
    std::string device = {};  // empty: this machine's CPU
  };
  std::string File(const std::vector<Row>& rows) {
    nlohmann::json records = nlohmann::json::array();
    for (const Row& row : rows) {
      records.push_back({{"kernel_id", row.kernel},
                         {"operation", "norm.rms"},
                         {"device_id", row.device.empty() ? engine.DeviceId("cpu") : row.device},
                         {"sm_version", row.device.empty() ? 0 : 90},
                         {"dtype", "float32"},
                         {"head_dim", 0},
                         {"seq_bucket", 0},
                         {"batch_bucket", 0},
                         {"axes", {{"...", 2}, {"hidden", row.hidden}}},
                         {"cache_state", "warm"},
                         {"execution", row.execution},
                         {"median_us", row.us},
                         {"p95_us", row.us},
                         {"samples", 9},
                         {"variance_us", 0.0},
                         {"protocol", 1},
                         {"warmup_runs", 1},
                         {"timer", "wall"},
                         {"interleaved", true},
                         {"kernel_version", "1"},
                         {"layerzero_version", "1"},
                         {"build_id", "1"},
                         {"backend", "a"},
                         {"measured_at", "2026-01-31T12:00:00Z"}});
    }
    return nlohmann::json{{"schema_version", "1.0"}, {"records", records}}.dump();
  }
  std::string Chosen(int64_t hidden, int64_t policy = 0) {
    const std::string size = std::to_string(hidden);
    auto c = verify::ParseCase(*engine.Find("rms_norm"), "input=f32[2," + size + "] weight=f32[" + size + "]");
    EXPECT_TRUE(c.ok());
    Request r = c->MakeRequest();
    r.policy = policy;
    EXPECT_TRUE(engine.Bind(r).ok());
    auto plan = engine.Select(r);
    EXPECT_TRUE(plan.ok()) << plan.status().Text();
    return plan.ok() ? (*plan)->kernel->id : "";
  }
};

TEST_F(EnginePrior, TimeDecidesClassByClass) {
  ASSERT_TRUE(engine.UsePrior(File({}), "none").ok());
  EXPECT_EQ(Chosen(64), "a.k");
  const std::string times = File({{"a.k", 64, 9}, {"b.k", 64, 1}, {"a.k", 4096, 1}, {"b.k", 4096, 9}});
  ASSERT_TRUE(engine.UsePrior(times, "test").ok());
  for (int again = 0; again < 2; ++again) {  // the second time from the cache
    EXPECT_EQ(Chosen(64), "b.k");
    EXPECT_EQ(Chosen(500), "b.k");
    EXPECT_EQ(Chosen(513), "a.k");
    EXPECT_EQ(Chosen(4096), "a.k");
  }
}

TEST_F(EnginePrior, TimesOfWeightsByColumnsAreNotThoseOfWeightsByRows) {
  const auto options = [&](const char* weight) {
    auto c = verify::ParseCase(*engine.Find("linear"), std::string("input=f32[4,64] weight=f32[64,64]") + weight);
    EXPECT_TRUE(c.ok());
    Request r = c->MakeRequest();
    EXPECT_TRUE(engine.Bind(r).ok());
    return OptionsOf(r);
  };
  using Options = std::map<std::string, std::string>;
  EXPECT_EQ(options(""), Options());
  EXPECT_EQ(options("@transposed"), (Options{{"weight.last_dim_stride1", "false"}}));
}

TEST_F(EnginePrior, ACacheInEightBitsAndAMaskOfBooleansAreOptions) {
  const auto options = [&](const char* operation, const char* line) {
    auto c = verify::ParseCase(*engine.Find(operation), line, verify::Fills::kIntegers);
    EXPECT_TRUE(c.ok());
    Request r = c->MakeRequest();
    EXPECT_TRUE(engine.Bind(r).ok());
    return OptionsOf(r);
  };
  using Options = std::map<std::string, std::string>;
  const std::string pages = "query=bf16[1,1,4,64] block_tables=i32[1,1]{0} context_lens=i32[1]{1} key_cache=",
                    shape = "[1,16,2,64]";
  const auto paged = [&](const std::string& dtype) {
    return options("paged_attention", (pages + dtype + shape + " value_cache=" + dtype + shape).c_str());
  };
  EXPECT_EQ(paged("bf16"), Options());
  EXPECT_EQ(paged("f8e4m3"), (Options{{"key_cache.dtype", "float8_e4m3fn"}, {"value_cache.dtype", "float8_e4m3fn"}}));
  const std::string mask = "query=f32[1,2,2,8] key=f32[1,2,2,8] value=f32[1,2,2,8] attn_mask=";
  EXPECT_EQ(options("attention", (mask + "f32[1,1,2,2]").c_str()).count("attn_mask.dtype"), 0u);
  EXPECT_EQ(options("attention", (mask + "bool[1,1,2,2]").c_str())["attn_mask.dtype"], "bool");
}

TEST_F(EnginePrior, TimesWithinNoiseLeaveItToPriorities) {
  ASSERT_TRUE(engine.UsePrior(File({{"a.k", 64, 1.04}, {"b.k", 64, 1}}), "test").ok());
  EXPECT_EQ(Chosen(64), "a.k");
}

TEST_F(EnginePrior, APolicyMayLeaveThemOut) {
  ASSERT_TRUE(engine.UsePrior(File({{"a.k", 64, 9}, {"b.k", 64, 1}}), "test").ok());
  auto scope = engine.PolicyScope(0, R"({"perfdb": {"enabled": false}})");  // proves: perfdb.enabled
  ASSERT_TRUE(scope.ok()) << scope.status().Text();
  EXPECT_EQ(Chosen(64, *scope), "a.k");
  EXPECT_EQ(Chosen(64), "b.k");
}

// The report of a call on a simulated GPU: nothing runs there, and nothing is read from a device.
nlohmann::json Explained(Engine& engine, const char* device, bool capturing) {
  auto c = verify::ParseCase(*engine.Find("rms_norm"), "input=f32[2,4096] weight=f32[4096]");
  Request r = c->MakeRequest();
  if (capturing) r.flags |= LZ_FLAG_CAPTURING;
  auto text = engine.Explain(r, device);
  EXPECT_TRUE(text.ok()) << text.status().Text();
  return nlohmann::json::parse(text.ok() ? *text : "{}");
}

TEST_F(EnginePrior, ACaptureIsDecidedByTimesOfGraphsAndACallByEagerOnes) {
  const std::string h100 = engine.DeviceId("h100");
  EXPECT_EQ(h100, "NVIDIA H100 80GB HBM3, sm_90, 132 multiprocessors");
  std::vector<Row> rows = {{"a.k", 4096, 9, "eager", h100}, {"b.k", 4096, 1, "eager", h100}};
  ASSERT_TRUE(engine.UsePrior(File(rows), "test").ok());
  EXPECT_EQ(Explained(engine, "h100", false)["kernel_id"], "b.k");
  EXPECT_EQ(Explained(engine, "h100", true)["kernel_id"], "a.k");  // by priority
  rows.insert(rows.end(), {{"a.k", 4096, 2, "graph", h100}, {"b.k", 4096, 8, "graph", h100}});
  ASSERT_TRUE(engine.UsePrior(File(rows), "test").ok());
  EXPECT_EQ(Explained(engine, "h100", false)["kernel_id"], "b.k");
  EXPECT_EQ(Explained(engine, "h100", true)["kernel_id"], "a.k");
  EXPECT_EQ(Chosen(4096), "a.k");  // this machine's CPU was not measured
}

TEST_F(EnginePrior, AnotherGpuOfTheGenerationIsATermAndNoDecision) {
  const std::string h100 = engine.DeviceId("h100");
  ASSERT_TRUE(engine.UsePrior(File({{"a.k", 4096, 1.2, "eager", h100}, {"b.k", 4096, 1, "eager", h100}}), "test").ok());
  EXPECT_EQ(Explained(engine, "h100", false)["kernel_id"], "b.k");
  EXPECT_EQ(Explained(engine, "a100", false)["kernel_id"], "a.k");
  const auto report = Explained(engine, "h200", false);
  EXPECT_EQ(report["kernel_id"], "a.k");  // 1 point of priority, half of 2 points of time
  for (const auto& candidate : report["candidates"]) {
    if (candidate["kernel_id"] != "a.k") continue;
    EXPECT_NE(candidate.dump().find("\"measured\""), std::string::npos) << candidate.dump();
  }
}

TEST_F(EnginePrior, ABadFileIsRefusedAndChangesNothing) {
  ASSERT_TRUE(engine.UsePrior(File({{"a.k", 64, 9}, {"b.k", 64, 1}}), "test").ok());
  const Status status = engine.UsePrior("{\"schema_version\": \"1.0\"}", "bad.json");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.Text().find("bad.json"), std::string::npos);
  EXPECT_EQ(Chosen(64), "b.k");
}

// A thread of the parent waits for the database, with what changes records locked; the child has no such thread.
TEST_F(EnginePrior, AChildForkedWhileRecordsAreReadHasRecords) {
  if (!perfdb::Sqlite::Get()) GTEST_SKIP() << "no SQLite";
  const perfdb::Folder folder;
  ASSERT_TRUE(engine.Configure(R"({"perfdb": {"path": ")" + (folder / "times.sqlite") + R"("}})").ok());
  {
    std::optional<perfdb::ProcessLock> held(std::in_place);
    std::atomic<bool> runs = false;
    std::thread reader([&] {
      runs = true;
      (void)engine.UsePriorOfMachine();
    });
    while (!runs) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const pid_t child = perfdb::Child([&] {
      alarm(60);  // ends a child that waits
      return engine.UsePrior(File({{"a.k", 64, 9}, {"b.k", 64, 1}}), "test").ok() && Chosen(64) == "b.k";
    });
    EXPECT_TRUE(perfdb::EndedWell(child));
    held.reset();
    reader.join();
  }
  ASSERT_TRUE(engine.Configure(R"({"perfdb": {"path": ""}})").ok());
}

}  // namespace
}  // namespace lz
