#include "base/trusted_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

namespace lz {
namespace {

// True where the owners of files say nothing about who can write them: in a container the other users are the
// host's, and a folder of the host that is mounted there belongs to one of them.
bool IsAlone() {
  for (const char* mark : {"/.dockerenv", "/run/.containerenv", "/run/secrets/kubernetes.io"}) {
    if (access(mark, F_OK) == 0) return true;
  }
  uint64_t inside = 0, outside = 0, count = 0;
  std::ifstream map("/proc/self/uid_map");
  return map >> inside >> outside >> count && (inside != outside || count < 0xffffffffu);
}

Status Refuse(const std::string& path, bool folder, const std::string& why, std::string fix) {
  const std::string what = folder ? "folder" : "file";
  return Status(StatusCode::kUntrustedFile, {.field = path,
                                             .wanted = "a " + what + " that no other user can write",
                                             .got = "one that is " + why,
                                             .fix = std::move(fix)});
}

Status Check(const std::string& path, const struct stat& info) {
  const std::string why = WhyUntrusted(info, FileUsers::Current());
  if (why.empty()) return {};
  const bool owned = why.starts_with("owned");
  return Refuse(
      path, S_ISDIR(info.st_mode), why,
      "run `" + std::string(owned ? "chown \"$USER\"" : "chmod go-w") + " '" + path + "'`, or use a copy of your own");
}

}  // namespace

FileUsers FileUsers::Current() {
  static const bool alone = IsAlone();
  return {.self = geteuid(), .alone = alone};
}

std::string WhyUntrusted(const struct stat& info, const FileUsers& users) {
  const bool folder = S_ISDIR(info.st_mode);
  if (!users.alone && info.st_uid != users.self && info.st_uid != 0) {
    return "owned by user " + std::to_string(info.st_uid);
  }
  if (!folder && !S_ISREG(info.st_mode)) return {};  // /dev/null, or a pipe of the owner
  if (folder && (users.alone || (info.st_mode & S_ISVTX))) return {};
  if (info.st_mode & S_IWOTH) return "writable by all users";
  const bool own_group = info.st_gid == 0 || info.st_gid == info.st_uid;
  if ((info.st_mode & S_IWGRP) && !own_group && !users.alone) {
    return "writable by the group " + std::to_string(info.st_gid);
  }
  return {};
}

Status CheckTrusted(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? Check(path, info) : Status();
}

TrustedFile::~TrustedFile() {
  if (fd_ >= 0) close(fd_);
}

Result<TrustedFile> TrustedFile::Open(const std::string& path) {
  TrustedFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info = {};
  if (file.fd_ < 0 || fstat(file.fd_, &info) != 0) return file;
  LZ_RETURN_IF_ERROR(Check(path, info));
  if (S_ISDIR(info.st_mode)) {
    close(file.Release());
    errno = EISDIR;
    return file;
  }
  // A pipe of this user, as <(command) in a shell, is read to its end.
  if (const int flags = fcntl(file.fd_, F_GETFL); flags >= 0) (void)fcntl(file.fd_, F_SETFL, flags & ~O_NONBLOCK);
  return file;
}

std::optional<std::string> TrustedFile::Read(size_t most) const {
  std::string text;
  for (;;) {
    const size_t had = text.size();
    const size_t step = std::min(most + 1 - had, size_t{1} << 20);
    if (step == 0) return text;
    text.resize(had + step);
    const ssize_t got = read(fd_, text.data() + had, step);
    text.resize(had + size_t(std::max<ssize_t>(got, 0)));
    if (got == 0) return text;
    if (got < 0 && errno != EINTR) return std::nullopt;
  }
}

Result<std::optional<std::string>> ReadTrustedFile(const std::string& path, size_t most) {
  auto file = TrustedFile::Open(path);
  if (!file.ok()) return file.TakeStatus();
  if (file->fd() < 0) return std::optional<std::string>();
  return file->Read(most);
}

Status MakeTrustedFolder(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path folder(path);
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), ignored);
  if (mkdir(path.c_str(), 0700) == 0) return {};
  struct stat info = {};
  const FileUsers users = FileUsers::Current();
  if (lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    if (!users.alone && info.st_uid != users.self && info.st_uid != 0) {
      return Refuse(path, true, "a link of user " + std::to_string(info.st_uid), "run `rm '" + path + "'`");
    }
  }
  return stat(path.c_str(), &info) == 0 ? Check(path, info) : Status();
}

}  // namespace lz
