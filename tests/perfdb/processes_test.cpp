// Many processes and one database: killed writers, 64 at once, forks, and what damages a write-ahead log.
// bench/perfdb_kill.py runs the first for 10,000 cycles.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <set>
#include <thread>

#include "perfdb/key.h"
#include "perfdb/session.h"
#include "perfdb/writer.h"
#include "rows.h"

namespace lz::perfdb {
namespace {

class Processes : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!Sqlite::Get(&why)) GTEST_SKIP() << why;
    shared = static_cast<std::atomic<int64_t>*>(
        mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  }
  void TearDown() override {
    if (shared) munmap(shared, kPages);
  }
  static constexpr size_t kPages = 65536;

  // Pairs of records, each pair in one transaction; shared[writer] is the last that was acknowledged.
  bool WritePairs(int writer) {
    for (int64_t i = shared[writer] + 1;; ++i) {
      const std::vector<Record> pair{Row(i, 10, "kernel.a" + std::to_string(writer)),
                                     Row(i, 20, "kernel.b" + std::to_string(writer))};
      if (!database.Write(pair, How::kReplace).ok()) return false;
      shared[writer] = i;
    }
  }
  int64_t Acknowledged() const { return shared[0] + shared[1] + shared[2] + shared[3]; }
  // What is wrong with the database; empty: nothing.
  std::string Check(int writers) {
    std::vector<int64_t> acknowledged;
    for (int w = 0; w < writers; ++w) acknowledged.push_back(shared[w]);
    auto contents = database.Read();
    if (!contents.ok()) return contents.status().Text();
    std::set<std::pair<std::string, int64_t>> rows;
    for (const Record& r : contents->records) rows.emplace(r.kernel_id, r.axes.at("..."));
    for (const auto& [kernel, i] : rows) {
      const std::string twin = (kernel[7] == 'a' ? "kernel.b" : "kernel.a") + kernel.substr(8);
      if (!rows.contains({twin, i})) return "half of a transaction: " + kernel + " " + std::to_string(i);
    }
    for (int w = 0; w < writers; ++w) {
      for (int64_t i = 1; i <= acknowledged[size_t(w)]; ++i) {
        if (!rows.contains({"kernel.a" + std::to_string(w), i})) return "lost: " + std::to_string(i);
      }
    }
    return "";
  }

  Folder folder;
  Database database{folder / "perfdb.sqlite"};
  std::atomic<int64_t>* shared = nullptr;
};

TEST_F(Processes, KilledWritersLoseNothing) {
  constexpr int kWriters = 4, kCycles = 30;
  std::mt19937 random(7);
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    std::vector<pid_t> children;
    for (int w = 0; w < kWriters; ++w) children.push_back(Child([&] { return WritePairs(w); }));
    // Not before all have begun, which takes a while on a busy machine.
    for (int wait = 0; Acknowledged() < 2 * kWriters * (cycle + 1) && wait < 30'000; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    for (const pid_t child : children) kill(child, SIGKILL);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    ASSERT_EQ(Check(kWriters), "") << "cycle " << cycle;
  }
  EXPECT_GE(Acknowledged(), 2 * kWriters * kCycles);  // they did write
  shared[0] += 1;                                     // control: a row that nobody wrote is missed
  EXPECT_NE(Check(kWriters), "");
}

TEST_F(Processes, SixtyFourAtOnceSeeNoBusyError) {
  std::vector<pid_t> children;
  for (int w = 0; w < 64; ++w) {
    children.push_back(Child([&] {
      for (int64_t i = 1; i <= 4; ++i) {
        if (!database.Write(std::vector{Row(i, 10, "kernel.a" + std::to_string(w))}, How::kReplace).ok()) return false;
        if (!database.Read().ok()) return false;
      }
      return true;
    }));
  }
  for (const pid_t child : children) EXPECT_TRUE(EndedWell(child));
  auto contents = database.Read();
  ASSERT_TRUE(contents.ok()) << contents.status().Text();
  EXPECT_EQ(contents->records.size(), 64u * 4);
}

// The topology that damages a WAL database of SQLite before 3.51.3 within a minute (bench/perfdb_wal.py has the
// control).
TEST_F(Processes, CheckpointsAndStoppedProcessesDamageNothing) {
  std::vector<pid_t> children;
  for (int w = 0; w < 2; ++w) children.push_back(Child([&] { return WritePairs(w); }));
  for (int c = 0; c < 3; ++c) {
    children.push_back(Child([&] {
      for (;;) {
        Connection db(*Sqlite::Get(), database.path(), 2000);
        for (int i = 0; i < 50; ++i) db.Run("PRAGMA wal_checkpoint(PASSIVE)");
      }
      return true;
    }));
  }
  std::mt19937 random(11);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 40; ++i) {
      const pid_t child = children[random() % children.size()];
      kill(child, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      kill(child, SIGCONT);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    }
    ASSERT_EQ(Check(2), "") << round;
  }
  for (const pid_t child : children) kill(child, SIGKILL);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  EXPECT_EQ(Check(2), "");
}

// A child that is forked while a thread of its parent is inside SQLite is refused; one forked at rest is not.
TEST_F(Processes, AForkedChildOpensItsOwn) {
  ASSERT_TRUE(database.Write(Rows(3), How::kReplace).ok());
  EXPECT_TRUE(EndedWell(Child([&] { return database.Write({Rows(4)}, How::kReplace).ok(); })));
  {
    const ProcessLock held;
    EXPECT_TRUE(EndedWell(Child([&] {
      auto contents = database.Read();
      return !contents.ok() && contents.status().Text().find("forked") != std::string::npos;
    })));
  }
  auto contents = database.Read();
  ASSERT_TRUE(contents.ok());
  EXPECT_EQ(contents->records.size(), 4u);
}

}  // namespace
}  // namespace lz::perfdb
