// SQLite, the machine's own library, opened when the performance database is first used. Nothing links to it: a machine
// without it has no database and works as before. A test compares the types of the functions with those of the
// library's own header.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace lz::perfdb {

struct Sqlite {
  int (*libversion_number)();
  int (*open_v2)(const char* path, sqlite3** db, int flags, const char* vfs);
  int (*close_v2)(sqlite3*);
  int (*extended_errcode)(sqlite3*);
  const char* (*errmsg)(sqlite3*);
  int (*busy_timeout)(sqlite3*, int ms);
  int (*db_config)(sqlite3*, int option, ...);
  int (*prepare_v2)(sqlite3*, const char* sql, int bytes, sqlite3_stmt**, const char** tail);
  int (*step)(sqlite3_stmt*);
  int (*reset)(sqlite3_stmt*);
  int (*finalize)(sqlite3_stmt*);
  int (*bind_blob)(sqlite3_stmt*, int, const void*, int bytes, void (*release)(void*));
  int (*bind_double)(sqlite3_stmt*, int, double);
  int (*bind_int64)(sqlite3_stmt*, int, long long);
  int (*bind_null)(sqlite3_stmt*, int);
  int (*bind_text)(sqlite3_stmt*, int, const char*, int bytes, void (*release)(void*));
  const void* (*column_blob)(sqlite3_stmt*, int);
  int (*column_bytes)(sqlite3_stmt*, int);
  double (*column_double)(sqlite3_stmt*, int);
  long long (*column_int64)(sqlite3_stmt*, int);
  const unsigned char* (*column_text)(sqlite3_stmt*, int);
  int (*column_type)(sqlite3_stmt*, int);

  // The library of the process; nullptr and why if there is none, or one older than 3.31 (2020).
  static const Sqlite* Get(std::string* why = nullptr);
  std::string version() const;  // "3.40.1"
};

// Results, flags and types of sqlite3.h.
enum : int {
  kSqliteOk = 0,
  kSqliteError = 1,  // as for a table that is not there
  kSqlitePermission = 3,
  kSqliteBusy = 5,
  kSqliteReadOnly = 8,
  kSqliteIoError = 10,
  kSqliteCorrupt = 11,
  kSqliteFull = 13,
  kSqliteCantOpen = 14,
  kSqliteAuth = 23,
  kSqliteNotADatabase = 26,
  kSqliteRow = 100,
  kSqliteDone = 101,
  kSqliteOpenReadOnly = 0x1,
  kSqliteOpenReadWrite = 0x2,
  kSqliteOpenNoMutex = 0x8000,
  kSqliteOpenNoFollow = 0x1000000,
  kSqliteConfigDefensive = 1010,
  kSqliteConfigTrustedSchema = 1017,
  kSqliteInteger = 1,
  kSqliteFloat = 2,
  kSqliteText = 3,
  kSqliteBlob = 4,
  kSqliteNull = 5,
};

// True for versions in which the WAL-reset fault is mended (3.51.3, 3.50.7 and 3.44.6 on): earlier ones damage a
// database in WAL mode that several connections write and checkpoint.
bool IsWalSafe(int version_number);

// A prepared statement. Parameters and columns are counted from 0; texts and blobs are copied.
class Statement {
 public:
  Statement() = default;
  Statement(const Sqlite& api, sqlite3_stmt* statement) : api_(&api), statement_(statement) {}
  Statement(Statement&& other) noexcept { *this = std::move(other); }
  Statement& operator=(Statement&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(statement_, other.statement_);
    return *this;
  }
  ~Statement() {
    if (statement_) api_->finalize(statement_);
  }

  void BindNull(int i) { api_->bind_null(statement_, i + 1); }
  void Bind(int i, int64_t value) { api_->bind_int64(statement_, i + 1, value); }
  void Bind(int i, bool value) { Bind(i, int64_t(value)); }
  void Bind(int i, double value) { api_->bind_double(statement_, i + 1, value); }
  void Bind(int i, std::string_view text);
  void BindBlob(int i, std::string_view bytes);
  int Step() { return api_->step(statement_); }
  void Reset() { api_->reset(statement_); }

  bool IsNull(int i) const { return api_->column_type(statement_, i) == kSqliteNull; }
  int Type(int i) const { return api_->column_type(statement_, i); }
  int64_t Int(int i) const { return api_->column_int64(statement_, i); }
  double Double(int i) const { return api_->column_double(statement_, i); }
  std::string Text(int i) const;
  std::string Blob(int i) const;

 private:
  const Sqlite* api_ = nullptr;
  sqlite3_stmt* statement_ = nullptr;
};

// A connection, for one thread and one transaction; it never lives across a fork (database.h).
class Connection {
 public:
  // The file must exist. kSqliteOk or the error, which Failure() describes.
  Connection(const Sqlite& api, const std::string& path, int busy_ms);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int error() const { return error_; }  // of Open or the last call, without its extension
  bool Run(const std::string& sql);     // false: error()
  std::optional<Statement> Prepare(const std::string& sql);
  std::optional<Statement> First(const std::string& sql);  // at its first row; nullopt: error() or no row
  bool Done(int step) {                                    // of a Statement's step: whether it ended well
    if (step != kSqliteDone && step != kSqliteRow) Note(step);
    return step == kSqliteDone;
  }
  std::string message() const;

 private:
  void Note(int code);

  const Sqlite& api_;
  sqlite3* db_ = nullptr;
  int error_ = kSqliteOk;
  std::string message_;
};

}  // namespace lz::perfdb
