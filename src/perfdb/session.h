// An open database: the locks, the file, its journal mode and its schema.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "core/status.h"
#include "perfdb/sqlite.h"

namespace lz::perfdb {

// What SQLite said, as an error with its fix.
Status Failure(const std::string& path, int code, const std::string& message);
Status Damaged(const std::string& path, const std::string& how);

// One thread of a process uses SQLite at a time: closing a file frees all locks that the process has on it. A child
// that was forked meanwhile inherits a library in the middle of its work and may not use it.
class ProcessLock {
 public:
  ProcessLock();
  ~ProcessLock();
  ProcessLock(const ProcessLock&) = delete;
  ProcessLock& operator=(const ProcessLock&) = delete;
  Status status() const;

 private:
  std::unique_lock<std::mutex> lock_;
};

// The right to write, of one process on the machine.
class FileLock {
 public:
  FileLock() = default;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();
  Status Take(const std::string& path, int patience_ms);

 private:
  int file_ = -1;
};

class Session {
 public:
  enum class Use { kRead, kWrite };
  // Opens the file; kWrite makes it and its folder if they are missing, and brings an old schema up to date.
  Status Open(const std::string& path, Use use, int patience_ms);
  // Closes the file and opens another one in its place, without giving the locks back; path() stays.
  Status OpenAgain(const std::string& path, int patience_ms);
  // kRead: false if there is no file, or none that anything was written to. Writers always have one.
  bool exists() const { return connection_.has_value() && has_schema_ && !is_old_; }
  bool is_old() const { return is_old_; }  // kRead: a writer has to migrate it first
  Connection& connection() { return *connection_; }
  const std::string& path() const { return path_; }  // with the folder's symbolic links resolved
  const std::string& journal() const { return journal_; }
  bool is_damaged() const;  // the last error says that the file's content is not what was written
  Status Failed() const { return Failure(path_, connection_->error(), connection_->message()); }
  void Close() { connection_.reset(); }

 private:
  Status CheckFile(Use use, bool* missing);
  Status MakeFile(const std::string& path);
  Status Connect(const std::string& path, Use use, int patience_ms);
  Status SetJournal(Use use);
  Status CheckSchema(Use use);
  Status Migrate(int64_t version);

  ProcessLock process_;
  FileLock file_;
  std::string path_, journal_;
  std::optional<Connection> connection_;
  bool has_schema_ = false, is_old_ = false, damaged_ = false;
};

}  // namespace lz::perfdb
