#include "health/markers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/trusted_file.h"
#include "health/mark_file.h"

namespace lz {
namespace {

constexpr const char* kPrefix = "running.";
constexpr size_t kFileBytes = Markers::kSlots * Markers::kSlotBytes;

// A record lock, which ends with the process that has it and does not pass to its children.
bool IsLockedByOther(int file) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(file, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}
bool LockFile(int file) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(file, F_SETLK, &lock) == 0;
}

// The files of this process: they must not be opened again, since closing one would drop its lock.
std::mutex g_own_mutex;
std::set<std::string>& OwnNames() {
  static auto& names = *new std::set<std::string>;
  return names;
}
std::string OwnKey(const std::string& path) { return path + "@" + std::to_string(getpid()); }
bool IsOwn(const std::string& path) {
  std::lock_guard lock(g_own_mutex);
  return OwnNames().contains(OwnKey(path));
}

// A process that ends by itself has no marks, whatever its other threads are doing.
void RemoveOwn() {
  std::lock_guard lock(g_own_mutex);
  for (const std::string& name : OwnNames()) {
    const std::string path = name.substr(0, name.rfind('@'));
    if (OwnKey(path) == name) (void)unlink(path.c_str());
  }
}

std::vector<std::string> MarksOf(int file) {
  std::string bytes(kFileBytes, '\0');
  if (pread(file, bytes.data(), bytes.size(), 0) != ssize_t(bytes.size())) return {};
  return MarksIn(bytes, Markers::kSlots, Markers::kSlotBytes);
}

}  // namespace

char* Markers::Memory(const std::string& folder) {
  if (char* memory = memory_.load(std::memory_order_acquire)) return memory;
  std::lock_guard lock(mutex_);
  if (failed_ || memory_.load(std::memory_order_relaxed)) return memory_.load(std::memory_order_relaxed);
  failed_ = true;
  if (!MakeTrustedFolder(folder).ok()) return nullptr;
  std::string path = folder + "/" + kPrefix + "XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  // The blocks are allocated: a full disk is an error here, not a signal at the first mark.
  if (LockFile(file) && posix_fallocate(file, 0, off_t(kFileBytes)) == 0) {
    memory = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (memory == MAP_FAILED) {
    (void)unlink(path.c_str());
    close(file);
    return nullptr;
  }
  {
    std::lock_guard own(g_own_mutex);
    if (OwnNames().empty()) (void)std::atexit(&RemoveOwn);
    OwnNames().insert(OwnKey(path));
  }
  failed_ = false;
  memory_.store(static_cast<char*>(memory), std::memory_order_release);
  return static_cast<char*>(memory);  // the file stays open: its lock says that the process lives
}

int Markers::Enter(const std::string& folder, std::string_view text) {
  char* const memory = Memory(folder);
  if (!memory) return -1;
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (taken_[slot].exchange(true, std::memory_order_acquire)) continue;
    char* at = memory + slot * kSlotBytes;
    const auto length = uint32_t(std::min(text.size(), kSlotBytes - sizeof(uint32_t)));
    std::memcpy(at + sizeof(length), text.data(), length);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the text is there before its length is
    std::memcpy(at, &length, sizeof(length));
    return int(slot);
  }
  return -1;
}

void Markers::Leave(int slot) {
  char* const memory = memory_.load(std::memory_order_acquire);
  if (slot < 0 || !memory) return;
  std::memset(memory + size_t(slot) * kSlotBytes, 0, sizeof(uint32_t));
  taken_[size_t(slot)].store(false, std::memory_order_release);
}

void Markers::Forget() {
  memory_.store(nullptr, std::memory_order_release);  // the parent's file, still mapped
  failed_ = false;
  for (auto& taken : taken_) taken.store(false, std::memory_order_relaxed);
}

std::vector<std::string> Markers::Collect(const std::string& folder) {
  std::vector<std::string> marks;
  if (!CheckTrusted(folder).ok()) return marks;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string path = folder + "/" + entry.path().filename().string();
    if (!entry.path().filename().string().starts_with(kPrefix) || IsOwn(path)) continue;
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    struct stat info = {};
    const bool trusted = fstat(file, &info) == 0 && WhyUntrusted(info, FileUsers::Current()).empty();
    if (trusted && !IsLockedByOther(file) && LockFile(file)) {
      const auto of_one = MarksOf(file);
      if (unlink(path.c_str()) == 0) marks.insert(marks.end(), of_one.begin(), of_one.end());
    }
    close(file);
  }
  return marks;
}

}  // namespace lz
