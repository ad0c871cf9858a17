// The database file: what is written is read, formats are migrated, damage is seen, and every odd state is an error
// that says what to do.
#include "perfdb/database.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "perfdb/columns.h"
#include "perfdb/key.h"
#include "perfdb/migrations.h"
#include "perfdb/session.h"
#include "rows.h"

namespace lz::perfdb {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Text(std::span<const Record> records) { return WriteRecords(records); }

std::string Bytes(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
void SetBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}
bool Sql(const std::string& path, const std::string& sql) {
  Connection db(*Sqlite::Get(), path, 1000);
  return db.error() == kSqliteOk && db.Run(sql);
}

class DatabaseTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!Sqlite::Get(&why)) GTEST_SKIP() << why;
  }
  // The rows, in the order of the key; an error is a failure of the test.
  std::vector<Record> Read() {
    auto contents = database.Read();
    EXPECT_TRUE(contents.ok()) << contents.status().Text();
    return contents.ok() ? contents->records : std::vector<Record>();
  }
  Database::Counts Write(const std::vector<Record>& records, How how = How::kReplace) {
    auto counts = database.Write(records, how);
    EXPECT_TRUE(counts.ok()) << counts.status().Text();
    return counts.ok() ? *counts : Database::Counts();
  }
  std::string Problem() {
    auto contents = database.Read();
    return contents.ok() ? "" : contents.status().Text();
  }

  Folder folder;
  const std::string path = folder / "sub/perfdb.sqlite";
  Database database{path, 200};
};

TEST_F(DatabaseTest, WhatIsWrittenIsRead) {
  EXPECT_TRUE(Read().empty());  // no file, no folder
  EXPECT_FALSE(std::filesystem::exists(path));
  std::vector<Record> rows = Rows(50);
  rows[7].is_causal = true;
  rows[8].driver_version = "580.65";
  rows[9].options = {{"name with \"quotes\"", "and ü"}};
  EXPECT_EQ(Write(rows).added, 50);
  std::vector<Record> read = Read();
  ASSERT_EQ(read.size(), 50u);
  std::set<std::string> written, found;
  for (const Record& r : rows) written.insert(Text({&r, 1}));
  for (const Record& r : read) found.insert(Text({&r, 1}));
  EXPECT_EQ(found, written);
  struct stat file {};
  ASSERT_EQ(stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
}

TEST_F(DatabaseTest, TheTableHasTheColumnsOfARecord) {
  Write({});
  std::set<std::string> table, record{"key", "checksum"};
  {
    Connection db(*Sqlite::Get(), path, 1000);
    auto column = db.Prepare("SELECT name FROM pragma_table_info('records')");
    while (column->Step() == kSqliteRow) table.insert(column->Text(0));
  }
  const Record any;
  Columns(any, [&](std::string_view name, const auto&, const Limits&) { record.emplace(name); });
  EXPECT_EQ(table, record);
}

TEST_F(DatabaseTest, HowARowMeetsOneOfItsKey) {
  Write({Row(1, 10), Row(2, 10)});
  EXPECT_EQ(Write({Row(1, 10)}).unchanged, 1);
  EXPECT_EQ(Write({Row(1, 20)}).replaced, 1);
  Record older = Row(1, 30), newer = Row(1, 40), other_driver = Row(1, 50);
  older.measured_at = "2025-01-31T12:00:00Z";
  newer.measured_at = "2027-01-31T12:00:00Z";
  other_driver.driver_version = "1";
  EXPECT_EQ(Write({older}, How::kNewer).unchanged, 1);
  EXPECT_EQ(Write({newer}, How::kNewer).replaced, 1);
  EXPECT_EQ(Write({other_driver}, How::kNewer).added, 1);
  // The run is measured again, without the second call: its row goes, that of the other driver stays.
  const Database::Counts counts = Write({Row(1, 60), Row(3, 60)}, How::kReplaceRun);
  EXPECT_EQ(counts.removed, 1);
  std::multiset<double> times;
  for (const Record& r : Read()) times.insert(r.median_us);
  EXPECT_EQ(times, (std::multiset<double>{50, 60, 60}));
}

TEST_F(DatabaseTest, ARecordThatTheFormatDoesNotAllowIsRefused) {
  Record wrong = Row(1);
  wrong.median_us = -1;
  auto counts = database.Write({&wrong, 1}, How::kReplace);
  ASSERT_FALSE(counts.ok());
  EXPECT_THAT(counts.status().Text(), HasSubstr("median_us"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(DatabaseTest, EveryOlderFormatIsMigrated) {
  for (size_t format = 1; format < kMigrations.size(); ++format) {
    SCOPED_TRACE(format);
    const Record old = [] {
      Record r = Row(1);
      r.low_us = r.high_us = {};  // format 1 has no interval
      return r;
    }();
    Write({old});
    std::string sql = Bytes(path);  // made by this version; taken back by hand
    ASSERT_TRUE(Sql(path, "ALTER TABLE records DROP COLUMN low_us"));
    ASSERT_TRUE(Sql(path, "ALTER TABLE records DROP COLUMN high_us"));
    ASSERT_TRUE(Sql(path, "PRAGMA user_version=" + std::to_string(format)));
    ASSERT_EQ(Read().size(), 1u);  // a reader migrates
    EXPECT_EQ(Read()[0].median_us, old.median_us);
    EXPECT_EQ(Write({Row(1), Row(2)}).replaced, 1);  // the same key
    ASSERT_EQ(Read().size(), 2u);
    std::filesystem::remove(path);
  }
}

TEST_F(DatabaseTest, ANewerFormatAndAnotherProgramsFileAreRefused) {
  Write(Rows(3));
  ASSERT_TRUE(Sql(path, "PRAGMA user_version=" + std::to_string(kSchemaVersion + 1)));
  EXPECT_THAT(Problem(), AllOf(HasSubstr("of a newer LayerZero"), HasSubstr("upgrade")));
  EXPECT_FALSE(database.Write(Rows(1), How::kReplace).ok());
  std::filesystem::remove(path);
  SetBytes(path, "");
  ASSERT_TRUE(Sql(path, "CREATE TABLE mine(a)"));
  EXPECT_THAT(Problem(), HasSubstr("another program"));
  EXPECT_FALSE(database.Write(Rows(1), How::kReplace).ok());
  EXPECT_FALSE(database.Vacuum(0).ok());
}

// ---- damage

// Each flipped bit changes nothing that is read, or is an error. Control: a row changed by SQL without its checksum.
TEST_F(DatabaseTest, BitFlipsAreSeen) {
  Write(Rows(40));
  const std::string intact = Bytes(path), rows = Text(Read());
  std::mt19937 random(1);
  int seen = 0;
  constexpr int kFlips = 2000;
  for (int i = 0; i < kFlips; ++i) {
    std::string flipped = intact;
    const size_t at = i < 800 ? size_t(i / 8) : random() % flipped.size();  // every bit of the header first
    flipped[at] = char(flipped[at] ^ (1 << (i % 8)));
    SetBytes(path, flipped);
    auto contents = database.Read();
    if (!contents.ok()) {
      ++seen;
    } else {
      ASSERT_EQ(Text(contents->records), rows) << "byte " << at << " bit " << i % 8;
    }
  }
  EXPECT_GT(seen, kFlips / 4);
  SetBytes(path, intact);
  ASSERT_TRUE(Sql(path, "UPDATE records SET median_us = 11 WHERE median_us = 10"));
  EXPECT_THAT(Problem(), HasSubstr("checksum"));
  SetBytes(path, intact);
  ASSERT_TRUE(Sql(path, "DELETE FROM records WHERE median_us = 10"));
  EXPECT_THAT(Problem(), AllOf(HasSubstr("39 rows where 40 were written"), HasSubstr("layerzero perfdb vacuum")));
}

TEST_F(DatabaseTest, TruncatedFilesAreSeenAndVacuumKeepsWhatCanBeRead) {
  Write(Rows(400));
  const std::string intact = Bytes(path);
  for (const size_t size : {size_t{1}, size_t{99}, size_t{4096}, intact.size() / 2, intact.size() - 1}) {
    SetBytes(path, intact.substr(0, size));
    EXPECT_NE(Problem(), "") << size;
    EXPECT_FALSE(database.Write(Rows(1), How::kReplaceRun).ok()) << size;
    auto cleaned = database.Vacuum(0);
    ASSERT_TRUE(cleaned.ok()) << size << ": " << cleaned.status().Text();
    EXPECT_NE(cleaned->damage, "");
    EXPECT_TRUE(std::filesystem::exists(cleaned->damaged));
    EXPECT_EQ(int64_t(Read().size()), cleaned->kept) << size;
    EXPECT_EQ(Write(Rows(400)).added, 400 - cleaned->kept) << size;
    std::filesystem::remove(cleaned->damaged);
  }
  ASSERT_TRUE(Sql(path, "UPDATE records SET median_us = 11 WHERE median_us = 10"));
  auto cleaned = database.Vacuum(0);
  ASSERT_TRUE(cleaned.ok());
  EXPECT_EQ(cleaned->kept, 399);
}

TEST_F(DatabaseTest, VacuumRemovesWhatIsOfNoUse) {
  std::vector<Record> rows = Rows(200);
  for (int i = 0; i < 50; ++i) rows[size_t(i)].valid = false;
  for (int i = 50; i < 120; ++i) rows[size_t(i)].torch_version = "2.14.0.dev20251101";
  Write(rows);
  auto cleaned = database.Vacuum(1800000000);
  ASSERT_TRUE(cleaned.ok()) << cleaned.status().Text();
  EXPECT_EQ(cleaned->invalid, 50);
  EXPECT_EQ(cleaned->expired, 70);
  EXPECT_EQ(cleaned->kept, 80);
  EXPECT_LT(cleaned->bytes_after, cleaned->bytes_before);
  EXPECT_EQ(Read().size(), 80u);
}

// ---- states of the file system: an error with a fix, never a crash; the file that is there is left alone

TEST_F(DatabaseTest, WhatIsNoFileIsRefused) {
  const auto refuses = [&](const std::string& what) {
    EXPECT_THAT(Problem(), HasSubstr(what));
    auto written = database.Write(Rows(1), How::kReplace);
    ASSERT_FALSE(written.ok()) << what;
    EXPECT_THAT(written.status().Text(), HasSubstr(what));
    EXPECT_NE(written.status().parts().fix, "");
    EXPECT_FALSE(database.Vacuum(0).ok());
    std::filesystem::remove_all(path);
  };
  std::filesystem::create_directories(path);
  refuses("a folder");
  std::filesystem::create_symlink("perfdb.sqlite", path);  // a loop
  refuses("a symbolic link");
  SetBytes(folder / "target", "text");
  std::filesystem::create_symlink(folder / "target", path);
  refuses("a symbolic link");
  EXPECT_EQ(Bytes(folder / "target"), "text");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  refuses("no plain file");
  std::filesystem::remove_all(folder / "sub");
  SetBytes(folder / "sub", "a file where the folder should be");
  EXPECT_FALSE(database.Write(Rows(1), How::kReplace).ok());
  EXPECT_EQ(Bytes(folder / "sub"), "a file where the folder should be");
  std::filesystem::remove(folder / "sub");
  std::filesystem::create_symlink("sub", folder / "sub");
  EXPECT_FALSE(database.Write(Rows(1), How::kReplace).ok());
  EXPECT_NE(Problem(), "");
}

TEST_F(DatabaseTest, AFolderMayBeASymbolicLink) {
  std::filesystem::create_directory(folder / "real");
  std::filesystem::create_symlink("real", folder / "sub");
  Write(Rows(3));
  EXPECT_EQ(Read().size(), 3u);
}

// As another user, since root may do everything. nobody is 65534 on every Linux.
TEST_F(DatabaseTest, WhatMayNotBeWrittenIsReadAndWhatMayNotBeReadIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Write(Rows(3));
  const auto as_nobody = [](const std::function<bool()>& work) {
    return EndedWell(Child([&] { return setgid(65534) == 0 && setuid(65534) == 0 && work(); }));
  };
  const auto refused = [&](const char* what) {
    auto counts = database.Write(Rows(1), How::kReplace);
    return !counts.ok() && counts.status().Text().find(what) != std::string::npos;
  };
  for (const char* part : {"", "sub"}) chmod((folder / part).c_str(), 0755);
  chmod(path.c_str(), 0644);
  EXPECT_TRUE(as_nobody([&] { return database.Read().ok() && refused("user 0"); }));
  chmod(path.c_str(), 0000);
  EXPECT_TRUE(as_nobody([&] { return !database.Read().ok() && refused("user 0"); }));
  chmod((folder / "sub").c_str(), 0000);
  EXPECT_TRUE(as_nobody([&] { return !database.Read().ok() && !database.Write(Rows(1), How::kReplace).ok(); }));
  chmod((folder / "sub").c_str(), 0755);
  std::filesystem::remove(path);
  EXPECT_TRUE(as_nobody([&] { return database.Read().ok() && refused("permi"); }) ||
              as_nobody([&] { return database.Read().ok() && refused("Permi"); }));  // a folder of root's
}

// Every size limit: the file never has a torn transaction.
TEST_F(DatabaseTest, AFullDiskLosesTheTransactionAlone) {
  Write(Rows(20));
  const std::string before = Text(Read());
  for (int kib = 16; kib < 400; kib += 24) {
    EXPECT_TRUE(EndedWell(Child([&] {
      std::signal(SIGXFSZ, SIG_IGN);  // as Python does, and the writer's thread
      const rlimit limit = {rlim_t(kib) * 1024, rlim_t(kib) * 1024};
      setrlimit(RLIMIT_FSIZE, &limit);
      std::vector<Record> many;
      for (int i = 0; i < 400; ++i) many.push_back(Row(1000 + i));
      auto counts = database.Write(many, How::kReplace);
      if (counts.ok()) return kib > 200;
      return !counts.status().parts().fix.empty();
    }))) << kib;
    auto contents = database.Read();
    ASSERT_TRUE(contents.ok()) << kib << " " << contents.status().Text();
    if (contents->records.size() == 20) {
      ASSERT_EQ(Text(contents->records), before);
    } else {
      ASSERT_EQ(contents->records.size(), 420u);
      break;
    }
  }
}

TEST_F(DatabaseTest, NoFileDescriptorsAreLeftOver) {
  const auto count = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  Write(Rows(2));
  const auto before = count();
  for (int i = 0; i < 20; ++i) {
    Write({Row(i)});
    Read();
    (void)database.Vacuum(0);
  }
  EXPECT_EQ(count(), before);
  EXPECT_TRUE(EndedWell(Child([&] {
    const rlimit limit = {3, 3};
    setrlimit(RLIMIT_NOFILE, &limit);
    return !database.Read().ok() && !database.Write(Rows(1), How::kReplace).ok();
  })));
}

TEST_F(DatabaseTest, ALockedDatabaseIsAnErrorAfterTheWait) {
  Write(Rows(3));
  {
    Connection other(*Sqlite::Get(), path, 0);
    ASSERT_TRUE(other.Run("BEGIN EXCLUSIVE"));
    EXPECT_TRUE(EndedWell(Child([&] {  // a process of its own: two connections of one process share their locks
      auto counts = Database(path, 50).Write(Rows(1), How::kReplace);
      return !counts.ok() && counts.status().Text().find("another process holds it") != std::string::npos;
    })));
    other.Run("ROLLBACK");
  }
  EXPECT_EQ(Read().size(), 3u);
}

TEST_F(DatabaseTest, ADeletedFileIsMadeAgain) {
  Write(Rows(3));
  std::filesystem::remove_all(folder / "sub");
  EXPECT_TRUE(Read().empty());
  EXPECT_EQ(Write(Rows(2)).added, 2);
  EXPECT_EQ(Read().size(), 2u);
}

// A library with the fault takes a database out of WAL mode, unless another process uses it.
TEST_F(DatabaseTest, AWriteAheadLogIsUsedByASafeLibraryAlone) {
  Write(Rows(3));
  const bool safe = IsWalSafe(Sqlite::Get()->libversion_number());
  EXPECT_EQ(database.Read()->journal, safe ? "wal" : "delete");
  if (safe) return;
  ASSERT_TRUE(Sql(path, "PRAGMA journal_mode=wal"));
  EXPECT_EQ(Read().size(), 3u);
  EXPECT_EQ(database.Read()->journal, "delete");
  int ready[2], end[2];
  ASSERT_TRUE(pipe(ready) == 0 && pipe(end) == 0);
  const pid_t other = Child([&] {
    Connection db(*Sqlite::Get(), path, 1000);
    const bool done = db.Run("PRAGMA journal_mode=wal") && db.Run("BEGIN") && db.First("SELECT count(*) FROM records");
    char byte = 0;
    close(end[1]);
    return done && write(ready[1], "x", 1) == 1 && read(end[0], &byte, 1) == 0;
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(Problem(), AllOf(HasSubstr("can damage a WAL"), HasSubstr("3.51.3")));
  EXPECT_FALSE(database.Write(Rows(1), How::kReplace).ok());
  close(end[0]);
  close(end[1]);
  EXPECT_TRUE(EndedWell(other));
  EXPECT_EQ(Read().size(), 3u);
}

}  // namespace
}  // namespace lz::perfdb
