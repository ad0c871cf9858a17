// Files that decide which code runs, or what it computes with: used only if no other user of the machine can change
// them. A file is opened, the open file is checked, and what is read is what was checked.
//   auto text = ReadTrustedFile(path, kMaxPolicyBytes);
//   if (!text.ok()) return text.TakeStatus();      // kUntrustedFile: the status says what to run
//   if (!*text) ...                                // it cannot be read: errno has the cause
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <utility>

#include "base/export.h"
#include "core/status.h"

namespace lz {

// Who may have written a file.
struct FileUsers {
  unsigned self = 0;   // the process's effective user
  bool alone = false;  // a container or a user namespace, whose files have the owners of another system
  static FileUsers Current();
};

// Why another user can change a file or folder; empty: none can. Owners are this user and root. A group may write if it
// is root's, or the owner's own (its number is the user's, as useradd makes them). In a folder that everybody may write
// the sticky bit keeps files their owner's.
std::string WhyUntrusted(const struct stat& info, const FileUsers& users);

// kUntrustedFile, or no error; a path that does not exist is not refused.
LZ_OWN Status CheckTrusted(const std::string& path);

// An open file that was checked; closed with the object.
class TrustedFile {
 public:
  TrustedFile() = default;
  TrustedFile(TrustedFile&& other) noexcept : fd_(other.Release()) {}
  TrustedFile& operator=(TrustedFile&&) = delete;
  ~TrustedFile();
  // Without waiting: a pipe that nobody writes is empty. fd() is -1 if it cannot be opened, and errno has the cause.
  static Result<TrustedFile> Open(const std::string& path);
  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  // At most `most` + 1 bytes, so that a reader with this limit refuses a longer file; nothing: errno has the cause.
  std::optional<std::string> Read(size_t most) const;

 private:
  explicit TrustedFile(int fd) : fd_(fd) {}
  int fd_ = -1;
};
Result<std::optional<std::string>> ReadTrustedFile(const std::string& path, size_t most);

// Makes a folder (for this user alone) if there is none, and checks it and, if it is a link, the link's owner. What
// cannot be made is no error here: writing into it fails then.
Status MakeTrustedFolder(const std::string& path);

}  // namespace lz
