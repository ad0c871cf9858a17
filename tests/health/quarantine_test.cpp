// Quarantine rows as data, their file, and the marks of processes that ended.
#include "health/quarantine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "health/known_wrong.h"
#include "health/markers.h"

namespace lz {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Quarantine : public testing::Test {
 protected:
  Quarantine() {
    std::string made = "/tmp/lz_quarantine_XXXXXX";
    folder_ = mkdtemp(made.data());
  }
  ~Quarantine() override { std::filesystem::remove_all(folder_); }
  static QuarantineRow Row(std::string kernel) {
    return {.kernel = std::move(kernel),
            .operation = "norm.rms",
            .when = {{"dtype", Rel::kEq, 2}},
            .device = "a CPU",
            .version = "1",
            .outcome = Outcome::kCrashed,
            .detail = "it \"ended\"",
            .since = 5,
            .until = 7};
  }
  std::string folder_;
};

TEST_F(Quarantine, ARowIsTheSameAfterItWasWrittenAndRead) {
  const QuarantineFile file(folder_);
  EXPECT_TRUE(file.Read()->empty());
  QuarantineRow row = Row("a.k");
  row.driver = "580.65";
  row.library_versions = {"2.5", "2.9"};
  ASSERT_TRUE(file.Update([&](auto* rows) { AddTo(rows, row); }).ok());
  const auto rows = file.Read();
  ASSERT_TRUE(rows.ok()) << rows.status().Text();
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ(RowToJson((*rows)[0]), RowToJson(row));
  EXPECT_EQ((*rows)[0].library_versions, row.library_versions);
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_THAT(entry.path().filename().string(), testing::AnyOf("quarantine.json", "quarantine.lock"));
  }
}

TEST_F(Quarantine, ASecondStrikeHoldsUntilTheVersionChanges) {
  std::vector<QuarantineRow> rows;
  EXPECT_EQ(AddTo(&rows, Row("a.k")).until, 7);
  const QuarantineRow second = AddTo(&rows, Row("a.k"));
  EXPECT_EQ(second.strikes, 2);
  EXPECT_EQ(second.until, 0);
  QuarantineRow newer = Row("a.k");
  newer.version = "2";
  EXPECT_EQ(AddTo(&rows, newer).strikes, 1);  // another version has its own strikes
  AddTo(&rows, Row("b.k"));
  EXPECT_EQ(rows.size(), 2u);
}

TEST_F(Quarantine, MistakesInAFileAreNamed) {
  const auto error = [](std::string_view text) { return ReadQuarantine(text, "q.json").status().Text(); };
  EXPECT_THAT(error("{"), HasSubstr("q.json"));
  EXPECT_THAT(error(R"({"version": 2, "rows": []})"), HasSubstr("version: wanted 1, got 2"));
  EXPECT_THAT(error(R"({"version": 1, "rows": [{"kernel": "a"}]})"), HasSubstr("rows[0].operation: wanted a value"));
  EXPECT_THAT(error(R"({"version": 1, "rows": [{"kernel": "a", "operation": "b", "outcome": "sad"}]})"),
              HasSubstr("outcome: wanted the name of an outcome, got 'sad'"));
  EXPECT_THAT(error(R"({"version": 1, "rows": [{"kernel": "a", "operation": "b", "outcome": "wrong", "x": 1}]})"),
              HasSubstr("rows[0].x: wanted a known key"));
  EXPECT_THAT(error(R"({"version": 1, "rows": [{"kernel": "a", "operation": "b", "outcome": "wrong",
                       "when": [{"field": "s", "relation": "~", "value": 1}]}]})"),
              HasSubstr("relation: wanted ==, !="));
}

TEST_F(Quarantine, ADamagedFileIsWrittenAnew) {
  const QuarantineFile file(folder_);
  std::ofstream(file.path()) << "{\"version\": 1, \"ro";
  EXPECT_FALSE(file.Read().ok());
  ASSERT_TRUE(file.Update([&](auto* rows) { AddTo(rows, Row("a.k")); }).ok());
  EXPECT_EQ(file.Read()->size(), 1u);
}

TEST_F(Quarantine, AFolderThatCannotBeWrittenIsAnErrorAndNoMore) {
  const QuarantineFile file("/proc/nothing");
  EXPECT_FALSE(file.Update([&](auto* rows) { AddTo(rows, Row("a.k")); }).ok());
  Markers markers;
  EXPECT_EQ(markers.Enter("/proc/nothing", "a"), -1);
}

TEST_F(Quarantine, ProcessesLoseNoRowOfEachOther) {
  std::vector<pid_t> children;
  for (int p = 0; p < 4; ++p) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    for (int i = 0; i < 25; ++i) {
      (void)QuarantineFile(folder_).Update(
          [&](auto* rows) { AddTo(rows, Row("p" + std::to_string(p) + "." + std::to_string(i))); });
    }
    _exit(0);
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  EXPECT_EQ(QuarantineFile(folder_).Read()->size(), 100u);
}

TEST_F(Quarantine, RowsEndAtTheirTimeAndWithAClockThatWasSetBack) {
  QuarantineRow row = Row("a.k");
  row.since = 1'000'000, row.until = 1'086'400;
  EXPECT_FALSE(row.HasEnded(1'000'000));
  EXPECT_FALSE(row.HasEnded(1'086'399));
  EXPECT_TRUE(row.HasEnded(1'086'400));
  EXPECT_FALSE(row.HasEnded(1'000'000 - 60));  // two machines' clocks
  EXPECT_TRUE(row.HasEnded(1'000'000 - 86'400));
  row.until = 0;
  EXPECT_FALSE(row.HasEnded(0));
}

TEST(VersionRange, ComparesNumbers) {
  const VersionRange range{"2.5", "2.10"};
  for (const char* inside : {"2.5", "2.5.0", "2.9.1+cu130", "2.6.0-rc1"}) EXPECT_TRUE(range.Holds(inside)) << inside;
  for (const char* outside : {"2.4.9", "2.10", "2.10.0", "3", ""}) EXPECT_FALSE(range.Holds(outside)) << outside;
  EXPECT_TRUE(VersionRange{}.Holds(""));
}

TEST(KnownWrong, EveryRowIsReadAndEndsAtAVersion) {
  size_t rows = 0;
  for (const std::string_view text : KnownWrong()) {
    const auto read = ReadQuarantine(text, "known_wrong.json");
    ASSERT_TRUE(read.ok()) << read.status().Text();
    for (const QuarantineRow& row : *read) EXPECT_NE(row.library_versions.below, "") << row.kernel;
    rows += read->size();
  }
  EXPECT_GT(rows, 0u);
}

// ---- marks

TEST_F(Quarantine, AMarkOfAProcessThatEndedInsideAKernelIsFoundOnce) {
  const pid_t child = fork();
  if (child == 0) {
    static Markers markers;
    const int left = markers.Enter(folder_, "came back");
    markers.Enter(folder_, "crashed");
    markers.Leave(left);
    raise(SIGKILL);
  }
  waitpid(child, nullptr, 0);
  EXPECT_THAT(Markers::Collect(folder_), ElementsAre("crashed"));
  EXPECT_THAT(Markers::Collect(folder_), ElementsAre());
}

TEST_F(Quarantine, MarksOfRunningProcessesStay) {
  Markers own;
  EXPECT_GE(own.Enter(folder_, "mine"), 0);
  EXPECT_THAT(Markers::Collect(folder_), ElementsAre());
  int ready[2], done[2];
  ASSERT_EQ(pipe(ready) | pipe(done), 0);
  const pid_t child = fork();
  char byte = 0;
  if (child == 0) {
    own.Forget();
    own.Enter(folder_, "the child's");
    (void)!write(ready[1], &byte, 1);
    (void)!read(done[0], &byte, 1);
    raise(SIGKILL);
  }
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(Markers::Collect(folder_), ElementsAre());
  ASSERT_EQ(write(done[1], &byte, 1), 1);
  waitpid(child, nullptr, 0);
  EXPECT_THAT(Markers::Collect(folder_), ElementsAre("the child's"));  // and not the mark that it inherited
}

TEST_F(Quarantine, AMarkThatIsTooLongOrOneTooManyIsLeftOut) {
  Markers markers;
  std::vector<int> slots;
  for (size_t i = 0; i < Markers::kSlots; ++i) slots.push_back(markers.Enter(folder_, std::string(100000, 'x')));
  for (const int slot : slots) EXPECT_GE(slot, 0);
  EXPECT_EQ(markers.Enter(folder_, "one more"), -1);
  markers.Leave(slots[3]);
  EXPECT_EQ(markers.Enter(folder_, "one more"), slots[3]);
  markers.Leave(-1);
}

}  // namespace
}  // namespace lz
