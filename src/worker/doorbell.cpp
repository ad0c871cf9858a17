#include "worker/doorbell.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace lz::worker {
namespace {

std::atomic_ref<uint64_t> At(char* word) { return std::atomic_ref(*reinterpret_cast<uint64_t*>(word)); }

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool SendByte(int file) {
  const char byte = 1;
  ssize_t sent = send(file, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno == ENOTSOCK) sent = write(file, &byte, 1);
  return sent >= 0 || errno == EAGAIN || errno == EINTR;  // a full buffer holds bytes that wake it too
}

}  // namespace

uint64_t Doorbell::Number() const { return At(word_).load(std::memory_order_acquire); }

bool Doorbell::Ring(uint64_t value, int file) const {
  At(word_).store(value, std::memory_order_seq_cst);
  return At(sleeps_).load(std::memory_order_seq_cst) == 0 || SendByte(file);
}

void Doorbell::Announce(int file) const {
  if (At(sleeps_).load(std::memory_order_relaxed) != 0) (void)SendByte(file);
}

// True: the word has changed. Keeps its processor: one that is yielded is back milliseconds later.
bool Doorbell::Spin(uint64_t seen, Patience& patience) const {
  const Clock::time_point end = Clock::now() + patience.Next();
  bool has_changed = Number() != seen;
  for (int i = 1; !has_changed && (i % 32 || Clock::now() < end); ++i) {
    Pause();
    has_changed = Number() != seen;
  }
  patience.Ended(has_changed);
  return has_changed;
}

// Reads what has arrived, so that an old byte ends no later wait.
Waited Doorbell::Sleep(uint64_t seen, int file, Patience& announced, Clock::time_point end) const {
  At(sleeps_).store(1, std::memory_order_seq_cst);
  Waited result = Waited::kChanged;
  while (At(word_).load(std::memory_order_seq_cst) == seen) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) {
      result = Waited::kTimeout;
      break;
    }
    pollfd poll_file = {.fd = file, .events = POLLIN, .revents = 0};
    if (poll(&poll_file, 1, int(left)) <= 0) continue;  // a signal, or the time is over
    char bytes[64];
    const ssize_t got = read(file, bytes, sizeof(bytes));
    if (got > 0) {  // published, or announced: then it needs no other byte
      At(sleeps_).store(0, std::memory_order_seq_cst);
      (void)Spin(seen, announced);
      At(sleeps_).store(1, std::memory_order_seq_cst);
      continue;
    }
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    // It may have answered before it ended.
    result = At(word_).load(std::memory_order_seq_cst) == seen ? Waited::kEnded : Waited::kChanged;
    break;
  }
  At(sleeps_).store(0, std::memory_order_seq_cst);
  return result;
}

Waited Doorbell::Wait(uint64_t seen, int file, Patience& spin, Patience& announced, Clock::time_point end) const {
  if (Spin(seen, spin)) return Waited::kChanged;
  return Sleep(seen, file, announced, end);
}

}  // namespace lz::worker
