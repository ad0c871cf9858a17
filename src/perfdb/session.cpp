#include "perfdb/session.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/trusted_file.h"
#include "perfdb/database.h"
#include "perfdb/migrations.h"

namespace lz::perfdb {
namespace {

std::atomic<std::mutex*> g_io{new std::mutex};  // never destroyed
std::atomic<bool> g_in_use{false}, g_forked_in_use{false};

std::string ErrorText(int error) {
  std::array<char, 256> buffer{};
  return strerror_r(error, buffer.data(), buffer.size());  // GNU's
}

Status Bad(const std::string& path, std::string wanted, std::string got, std::string fix) {
  return {StatusCode::kConfig, {path, std::move(wanted), std::move(got), std::move(fix)}};
}

constexpr const char* kElsewhere = "name another file by perfdb.path in the policy, or another LAYERZERO_CACHE_DIR";

// A file system of another machine, whose locks and shared memory are not trusted with a WAL.
bool IsRemote(const std::string& path) {
  struct statfs found {};
  if (statfs(path.c_str(), &found) != 0) return true;
  constexpr auto kRemote = std::to_array<uint32_t>({0x6969 /* NFS */, 0xff534d42 /* CIFS */, 0xfe534d42 /* SMB */,
                                                    0x65735546 /* FUSE */, 0x0bd00bd0 /* Lustre */,
                                                    0x47504653 /* GPFS */, 0x00c36400 /* Ceph */, 0x01021997 /* 9P */});
  return std::ranges::find(kRemote, uint32_t(found.f_type)) != kRemote.end();
}

}  // namespace

Status Damaged(const std::string& path, const std::string& how) {
  return Bad(path, "an intact performance database", how, "`layerzero perfdb vacuum` keeps the rows that can be read");
}

Status Failure(const std::string& path, int code, const std::string& message) {
  switch (code) {
    case kSqliteBusy:
      return Bad(path, "a database that can be locked", "another process holds it",
                 "end that process; see `fuser -v` of the file");
    case kSqliteReadOnly:
    case kSqlitePermission:
    case kSqliteAuth: return Bad(path, "a database that can be written", message, kElsewhere);
    case kSqliteFull: return Bad(path, "space for the database", message, "make room on the disk");
    case kSqliteCantOpen: return Bad(path, "a database that can be opened", message, kElsewhere);
    case kSqliteIoError:
      return Bad(path, "a database that can be read and written", message, "make room on the disk and check it");
    default: return Damaged(path, message);
  }
}

ProcessLock::ProcessLock() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    if (g_in_use.load()) g_forked_in_use.store(true);
    g_io.store(new std::mutex);  // the old one may be held by a thread that the child does not have
  });
  (void)registered;
  lock_ = std::unique_lock(*g_io.load());
  g_in_use.store(true);
}
ProcessLock::~ProcessLock() { g_in_use.store(false); }
Status ProcessLock::status() const {
  if (!g_forked_in_use.load()) return {};
  return Bad("perfdb", "a process of its own", "a child that was forked while its parent used SQLite",
             "start it by exec, or before the first call");
}

FileLock::~FileLock() {
  if (file_ >= 0) close(file_);  // frees the lock
}

Status FileLock::Take(const std::string& path, int patience_ms) {
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file_ < 0) return Bad(path, "a lock file", ErrorText(errno), kElsewhere);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  for (int tries = 0; fcntl(file_, F_SETLK, &whole) != 0; ++tries) {
    if (errno != EACCES && errno != EAGAIN && errno != EINTR) {
      return Bad(path, "a file that can be locked", ErrorText(errno), kElsewhere);
    }
    if (std::chrono::steady_clock::now() > end) return Failure(path, kSqliteBusy, "");
    std::this_thread::sleep_for(std::chrono::microseconds(200 + 100 * (tries % 8)));
  }
  return {};
}

Status Session::Open(const std::string& path, Use use, int patience_ms) {
  LZ_RETURN_IF_ERROR(process_.status());
  std::string why;
  const Sqlite* const api = Sqlite::Get(&why);
  if (!api) {
    return {StatusCode::kNotInstalled, {path, "SQLite", why, "install it: apt-get install libsqlite3-0"}};
  }
  path_ = path;
  bool missing = false;
  LZ_RETURN_IF_ERROR(CheckFile(use, &missing));
  if (missing && use == Use::kRead) return {};
  if (use == Use::kWrite) {
    LZ_RETURN_IF_ERROR(file_.Take(path_ + ".lock", patience_ms));
    LZ_RETURN_IF_ERROR(MakeFile(path_));
  }
  return Connect(path_, use, patience_ms);
}

Status Session::OpenAgain(const std::string& path, int patience_ms) {
  LZ_RETURN_IF_ERROR(MakeFile(path));
  return Connect(path, Use::kWrite, patience_ms);
}

Status Session::MakeFile(const std::string& path) {
  const int made = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (made < 0) return errno == EEXIST ? Status() : Bad(path, "a file that can be made", ErrorText(errno), kElsewhere);
  close(made);  // a new file: nothing of this process has a lock on it
  return {};
}

Status Session::Connect(const std::string& path, Use use, int patience_ms) {
  struct stat found {};
  // SQLite takes less than its smallest page for an empty database.
  damaged_ = stat(path.c_str(), &found) == 0 && found.st_size > 0 && found.st_size < 512;
  if (damaged_) return Damaged(path, std::to_string(found.st_size) + " bytes");
  connection_.emplace(*Sqlite::Get(), path, patience_ms);
  if (connection_->error() != kSqliteOk) return Failed();
  LZ_RETURN_IF_ERROR(CheckSchema(use));
  return has_schema_ ? SetJournal(use) : Status();
}

bool Session::is_damaged() const {
  if (damaged_ || !connection_) return damaged_;
  const int error = connection_->error();
  return error == kSqliteCorrupt || error == kSqliteNotADatabase || error == kSqliteError;
}

Status Session::CheckFile(Use use, bool* missing) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path file = fs::absolute(path_, error);
  if (error) return Bad(path_, "a path", error.message(), kElsewhere);
  fs::path folder = file.parent_path();
  if (use == Use::kWrite && !fs::is_directory(folder, error)) {
    fs::create_directories(folder, error);
    if (error) return Bad(folder, "a folder that can be made", error.message(), kElsewhere);
  }
  folder = fs::canonical(folder, error);
  *missing = error == std::errc::no_such_file_or_directory;
  if (*missing) return {};
  if (error) return Bad(path_, "a folder that can be read", error.message(), kElsewhere);
  path_ = folder / file.filename();
  struct stat found {};
  if (lstat(path_.c_str(), &found) != 0) {
    *missing = errno == ENOENT;
    return *missing ? Status() : Bad(path_, "a file", ErrorText(errno), kElsewhere);
  }
  if (!S_ISREG(found.st_mode)) {
    const char* const what = S_ISLNK(found.st_mode)   ? "a symbolic link"
                             : S_ISDIR(found.st_mode) ? "a folder"
                                                      : "no plain file";
    return Bad(path_, "a file", what, "remove it, or name another file by perfdb.path in the policy");
  }
  if (use == Use::kWrite && found.st_uid != geteuid()) {
    return Bad(path_, "a file of this user", "one of user " + std::to_string(found.st_uid), kElsewhere);
  }
  LZ_RETURN_IF_ERROR(CheckTrusted(folder));
  return CheckTrusted(path_);
}

Status Session::CheckSchema(Use use) {
  const auto number = [&](const char* pragma) -> std::optional<int64_t> {
    auto row = connection_->First(pragma);
    return row ? std::optional(row->Int(0)) : std::nullopt;
  };
  const auto id = number("PRAGMA application_id");
  const auto version = id ? number("PRAGMA user_version") : id;
  const auto tables = version ? number("SELECT count(*) FROM sqlite_master") : version;
  if (!tables) return Failed();
  const bool is_new = *id == 0 && *version == 0 && *tables == 0;
  if (!is_new && *id != kApplicationId) {
    return Bad(path_, "a performance database", "another program's", "name another file by perfdb.path in the policy");
  }
  if (*version > kSchemaVersion) {
    return Bad(path_, "a database of format " + std::to_string(kSchemaVersion) + " or older",
               "format " + std::to_string(*version) + ", of a newer LayerZero",
               "upgrade LayerZero, or name another file by perfdb.path in the policy");
  }
  has_schema_ = !is_new;
  if (*version == kSchemaVersion || (is_new && use == Use::kRead)) return {};
  if (use == Use::kRead) {
    is_old_ = true;
    return {};
  }
  has_schema_ = true;
  return Migrate(*version);
}

Status Session::Migrate(int64_t version) {
  if (version == 0 && !connection_->Run("PRAGMA page_size=16384")) return Failed();
  bool done = connection_->Run("BEGIN IMMEDIATE");
  for (size_t step = size_t(version); done && step < kMigrations.size(); ++step) {
    for (const char* sql : kMigrations[step]) done = done && connection_->Run(sql);
  }
  done = done && connection_->Run("PRAGMA application_id=" + std::to_string(kApplicationId)) &&
         connection_->Run("PRAGMA user_version=" + std::to_string(kSchemaVersion)) && connection_->Run("COMMIT");
  if (done) return {};
  Status failed = Failed();
  connection_->Run("ROLLBACK");
  return failed;
}

// A database in WAL mode is not touched by a library with the fault, as long as others have it open.
Status Session::SetJournal(Use use) {
  const bool wal = IsWalSafe(Sqlite::Get()->libversion_number()) && !IsRemote(path_);
  auto now = connection_->First("PRAGMA journal_mode");
  if (!now) return Failed();
  journal_ = now->Text(0);
  now.reset();
  const std::string wanted = wal ? "wal" : "delete";
  if (journal_ != wanted && (use == Use::kWrite || !wal)) {
    auto set = connection_->First("PRAGMA journal_mode=" + wanted);
    if (set) journal_ = set->Text(0);
  }
  if (journal_ == "wal" && !wal) {
    return Bad(path_, "a rollback journal, because SQLite " + Sqlite::Get()->version() + " can damage a WAL",
               "a WAL that another process uses", "end that process, or install SQLite 3.51.3 or later");
  }
  if (!connection_->Run(journal_ == "wal" ? "PRAGMA synchronous=NORMAL" : "PRAGMA synchronous=FULL")) return Failed();
  return {};
}

}  // namespace lz::perfdb
