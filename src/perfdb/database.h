// The performance database: measured records in one SQLite file that processes share.
//
//   Database database("~/.cache/layerzero/perfdb.sqlite", 30000);
//   auto contents = database.Read();                       // no file: no records
//   auto counts = database.Write(records, How::kReplace);  // returns when the rows are on the disk
//
// * A function opens the file, makes one transaction and closes it. So nothing lives across a fork, a file that was
//   deleted is made again, and an error of one call is not that of the next.
// * One writer at a time: a POSIX lock on <path>.lock, which the kernel frees when its process dies, comes before
//   SQLite's own lock. Writers therefore never meet SQLITE_BUSY among themselves.
// * Journal: WAL where SQLite is free of the WAL-reset fault and the file is on a local disk, else a rollback journal.
// * Every row has a checksum, and the table has that of all rows with their number: a change that SQLite did not make
//   is found, even a row that is gone. A damaged database is not used and not written until Vacuum() mends it.
// * Rows are hints: selection looks kernels up by id and checks every constraint of them again.
//
// These functions block: only threads that serve no operation call them (writer.h, engine/measured.h).
#pragma once

#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "perfdb/record.h"

namespace lz::perfdb {

inline constexpr int64_t kSchemaVersion = 2;
inline constexpr int64_t kApplicationId = 0x4c5a5044;  // "LZPD"

enum class How {
  kReplace,     // a row replaces that of the same key
  kNewer,       // the same, if it was measured later or has no rival
  kReplaceRun,  // rows of the same operation, device and run that are not in the list are removed
};

class Database {
 public:
  // `patience_ms`: how long to wait for another process's lock.
  explicit Database(std::string path, int patience_ms = 30000) : path_(std::move(path)), patience_ms_(patience_ms) {}

  struct Contents {
    std::vector<Record> records;
    std::string journal;  // "delete" or "wal"; empty: there is no file
    int64_t bytes = 0;    // of the file
  };
  struct Counts {
    int64_t added = 0, replaced = 0, unchanged = 0, removed = 0;
  };
  struct Cleaned {
    int64_t kept = 0, expired = 0, invalid = 0;
    int64_t bytes_before = 0, bytes_after = 0;
    std::string damage;   // what was wrong; empty: nothing
    std::string damaged;  // where the damaged file is now
  };

  Result<Contents> Read() const;
  Result<Counts> Write(std::span<const Record> records, How how) const;
  // Removes expired nightly rows and those marked as not valid, and frees disk space. A damaged file is renamed,
  // and a new one gets the rows that can be read.
  Result<Cleaned> Vacuum(std::time_t now) const;

  const std::string& path() const { return path_; }
  // The version of SQLite, and what it may use: "3.40.1, rollback journal"; "" and why if there is none.
  static std::string Library(std::string* why);

 private:
  std::string path_;
  int patience_ms_;
};

}  // namespace lz::perfdb
