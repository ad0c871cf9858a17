#include "perfdb/sqlite.h"

#include <dlfcn.h>

#include <utility>

namespace lz::perfdb {
namespace {

constexpr int kLeastVersion = 3031000;  // SQLITE_OPEN_NOFOLLOW, trusted_schema

struct Loaded {
  Sqlite api{};
  std::string why;
};

Loaded Load() {
  Loaded loaded;
  // By its soname, so that a process which has opened it already (CPython's sqlite3) shares one copy: two copies in one
  // process would undo each other's locks. It stays open.
  void* const library = dlopen("libsqlite3.so.0", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const why = dlerror();
    loaded.why = why ? why : "libsqlite3.so.0 does not load";
    return loaded;
  }
  const auto find = [&](const char* name, auto* to) {
    *to = reinterpret_cast<std::remove_pointer_t<decltype(to)>>(dlsym(library, name));
    if (!*to && loaded.why.empty()) loaded.why = std::string("libsqlite3.so.0 has no ") + name;
  };
  Sqlite& api = loaded.api;
#define LZ_FIND(name) find("sqlite3_" #name, &api.name)
  LZ_FIND(libversion_number);
  LZ_FIND(open_v2);
  LZ_FIND(close_v2);
  LZ_FIND(extended_errcode);
  LZ_FIND(errmsg);
  LZ_FIND(busy_timeout);
  LZ_FIND(db_config);
  LZ_FIND(prepare_v2);
  LZ_FIND(step);
  LZ_FIND(reset);
  LZ_FIND(finalize);
  LZ_FIND(bind_blob);
  LZ_FIND(bind_double);
  LZ_FIND(bind_int64);
  LZ_FIND(bind_null);
  LZ_FIND(bind_text);
  LZ_FIND(column_blob);
  LZ_FIND(column_bytes);
  LZ_FIND(column_double);
  LZ_FIND(column_int64);
  LZ_FIND(column_text);
  LZ_FIND(column_type);
#undef LZ_FIND
  if (loaded.why.empty() && api.libversion_number() < kLeastVersion) {
    loaded.why = "SQLite " + api.version() + " is older than 3.31";
  }
  return loaded;
}

void (*const kCopy)(void*) = reinterpret_cast<void (*)(void*)>(-1);  // SQLITE_TRANSIENT

}  // namespace

const Sqlite* Sqlite::Get(std::string* why) {
  static const Loaded& loaded = *new Loaded(Load());  // never destroyed: threads may outlive main
  if (why) *why = loaded.why;
  return loaded.why.empty() ? &loaded.api : nullptr;
}

std::string Sqlite::version() const {
  const int number = libversion_number();
  return std::to_string(number / 1000000) + "." + std::to_string(number / 1000 % 1000) + "." +
         std::to_string(number % 1000);
}

bool IsWalSafe(int number) {
  if (number >= 3051003) return true;
  const int minor = number / 1000, patch = number % 1000;
  return (minor == 3050 && patch >= 7) || (minor == 3044 && patch >= 6);
}

void Statement::Bind(int i, std::string_view text) {
  api_->bind_text(statement_, i + 1, text.data(), int(text.size()), kCopy);
}
void Statement::BindBlob(int i, std::string_view bytes) {
  api_->bind_blob(statement_, i + 1, bytes.data(), int(bytes.size()), kCopy);
}
std::string Statement::Text(int i) const {
  const unsigned char* const text = api_->column_text(statement_, i);
  return text ? std::string(reinterpret_cast<const char*>(text), size_t(api_->column_bytes(statement_, i))) : "";
}
std::string Statement::Blob(int i) const {
  const void* const bytes = api_->column_blob(statement_, i);
  return bytes ? std::string(static_cast<const char*>(bytes), size_t(api_->column_bytes(statement_, i))) : "";
}

Connection::Connection(const Sqlite& api, const std::string& path, int busy_ms) : api_(api) {
  constexpr int kFlags = kSqliteOpenNoMutex | kSqliteOpenNoFollow;
  Note(api.open_v2(path.c_str(), &db_, kFlags | kSqliteOpenReadWrite, nullptr));
  if ((error_ == kSqliteCantOpen || error_ == kSqlitePermission) && db_) {
    api.close_v2(std::exchange(db_, nullptr));
    error_ = kSqliteOk;
    Note(api.open_v2(path.c_str(), &db_, kFlags | kSqliteOpenReadOnly, nullptr));
  }
  if (error_ != kSqliteOk) return;
  api.busy_timeout(db_, busy_ms);
  api.db_config(db_, kSqliteConfigDefensive, 1, nullptr);
  api.db_config(db_, kSqliteConfigTrustedSchema, 0, nullptr);
  Run("PRAGMA cell_size_check=ON") && Run("PRAGMA mmap_size=0");
}

Connection::~Connection() {
  if (db_) api_.close_v2(db_);
}

void Connection::Note(int code) {
  error_ = code & 0xff;
  if (error_ == kSqliteOk || error_ == kSqliteRow || error_ == kSqliteDone) {
    error_ = kSqliteOk;
  } else {
    message_ = db_ ? api_.errmsg(db_) : "out of memory";
  }
}

std::optional<Statement> Connection::Prepare(const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  Note(api_.prepare_v2(db_, sql.c_str(), int(sql.size()), &statement, nullptr));
  if (error_ != kSqliteOk) return std::nullopt;
  return Statement(api_, statement);
}

bool Connection::Run(const std::string& sql) {
  auto statement = Prepare(sql);
  if (!statement) return false;
  int step;
  while ((step = statement->Step()) == kSqliteRow) {
  }
  Note(step);
  return error_ == kSqliteOk;
}

std::optional<Statement> Connection::First(const std::string& sql) {
  auto statement = Prepare(sql);
  if (!statement) return std::nullopt;
  const int step = statement->Step();
  Note(step);
  if (step != kSqliteRow) return std::nullopt;
  return statement;
}

std::string Connection::message() const { return message_; }

}  // namespace lz::perfdb
