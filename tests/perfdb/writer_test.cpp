// The queue: bounded, the oldest records make room, and whoever adds one never waits for the disk.
#include "perfdb/writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "rows.h"

namespace lz::perfdb {
namespace {

std::mutex g_gate;  // held: the disk does not answer
std::atomic<int> g_entered{0};
std::vector<int64_t> g_kept;
bool g_fails = false;

Status Slow(const std::string&, std::span<const Record> records) {
  ++g_entered;
  std::lock_guard gate(g_gate);
  if (g_fails) return {StatusCode::kConfig, {"disk", "space", "none", {}}};
  for (const Record& r : records) g_kept.push_back(r.axes.at("..."));
  return {};
}

TEST(Writer, AddNeverWaitsAndTheOldestRecordsMakeRoom) {
  Writer& writer = *new Writer("", &Slow);  // its thread is not joined
  {
    std::lock_guard gate(g_gate);
    writer.Add(Row(0));
    while (g_entered == 0) sched_yield();
    // The writing thread waits for the gate, which this thread holds: an Add that waited for it would never return.
    for (int i = 1; i <= int(Writer::kCapacity) + 10; ++i) writer.Add(Row(i));
    const Writer::Counts full = writer.counts();
    EXPECT_EQ(full.dropped, 10);
    EXPECT_EQ(full.waiting, int64_t(Writer::kCapacity) + 1);
    EXPECT_FALSE(writer.Flush(0.01));
  }
  EXPECT_TRUE(writer.Flush(60));
  const Writer::Counts counts = writer.counts();
  EXPECT_EQ(counts.added, int64_t(Writer::kCapacity) + 11);
  EXPECT_EQ(counts.written, int64_t(Writer::kCapacity) + 1);
  ASSERT_EQ(g_kept.size(), Writer::kCapacity + 1);
  EXPECT_EQ(g_kept[0], 0);
  EXPECT_EQ(g_kept[1], 11);  // 1 to 10 were dropped
  g_fails = true;
  writer.Add(Row(1));
  EXPECT_TRUE(writer.Flush(60));
  EXPECT_EQ(writer.counts().failed, 1);
  EXPECT_NE(writer.counts().problem, "");
}

TEST(Writer, AFlushedRecordIsInTheDatabase) {
  const Folder folder;
  Writer& writer = *new Writer(folder / "perfdb.sqlite");
  for (const Record& r : Rows(100)) writer.Add(r);
  ASSERT_TRUE(writer.Flush(60));
  EXPECT_EQ(writer.counts().problem, "");
  auto contents = Database(folder / "perfdb.sqlite").Read();
  ASSERT_TRUE(contents.ok()) << contents.status().Text();
  EXPECT_EQ(contents->records.size(), 100u);
}

}  // namespace
}  // namespace lz::perfdb
