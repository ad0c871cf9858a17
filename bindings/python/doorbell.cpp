#include "doorbell.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "gil.h"

namespace lz::python {
namespace {

using Clock = std::chrono::steady_clock;
using Word = std::atomic_ref<uint64_t>;

constexpr auto kSlice = std::chrono::milliseconds(100);  // between two looks at Python's signals

Word At(unsigned long long address) { return Word(*reinterpret_cast<uint64_t*>(uintptr_t(address))); }

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

enum class Waited { kChanged, kTimeout, kEnded };

// Until `end`. Reads what has arrived, so that an old byte ends no later wait.
Waited Sleep(Word word, uint64_t seen, Word sleeps, int file, Clock::time_point end) {
  sleeps.store(1, std::memory_order_seq_cst);
  Waited result = Waited::kChanged;
  while (word.load(std::memory_order_seq_cst) == seen) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) {
      result = Waited::kTimeout;
      break;
    }
    pollfd poll_file = {.fd = file, .events = POLLIN, .revents = 0};
    if (poll(&poll_file, 1, int(left)) <= 0) continue;  // a signal, or the time is over
    char bytes[64];
    const ssize_t got = read(file, bytes, sizeof(bytes));
    if (got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN))) continue;
    // It may have answered before it ended.
    result = word.load(std::memory_order_seq_cst) == seen ? Waited::kEnded : Waited::kChanged;
    break;
  }
  sleeps.store(0, std::memory_order_seq_cst);
  return result;
}

Waited Wait(Word word, uint64_t seen, Word sleeps, int file, Clock::time_point spin_end, Clock::time_point end) {
  for (int i = 0; word.load(std::memory_order_acquire) == seen; ++i) {
    if (i % 32 == 31 && Clock::now() >= spin_end) return Sleep(word, seen, sleeps, file, end);
    Pause();
  }
  return Waited::kChanged;
}

}  // namespace

PyObject* DoorbellRing(PyObject*, PyObject* args) {
  unsigned long long word, value, sleeps;
  int file;
  if (!PyArg_ParseTuple(args, "KKKi", &word, &value, &sleeps, &file)) return nullptr;
  At(word).store(value, std::memory_order_seq_cst);
  if (At(sleeps).load(std::memory_order_seq_cst) == 0) Py_RETURN_NONE;
  const char byte = 1;
  ssize_t sent = send(file, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno == ENOTSOCK) sent = write(file, &byte, 1);
  // A full buffer holds bytes that wake it too.
  if (sent < 0 && errno != EAGAIN && errno != EINTR) return PyErr_SetFromErrno(PyExc_OSError);
  Py_RETURN_NONE;
}

PyObject* DoorbellWait(PyObject*, PyObject* args) {
  unsigned long long word, seen, sleeps;
  int file;
  double spin_us, timeout_s;
  if (!PyArg_ParseTuple(args, "KKKidd", &word, &seen, &sleeps, &file, &spin_us, &timeout_s)) return nullptr;
  const auto after = [now = Clock::now()](double seconds) {
    return now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  const auto spin_end = after(spin_us * 1e-6), end = after(timeout_s < 0 ? 1e9 : std::min(timeout_s, 1e9));
  while (true) {
    const Waited waited = [&] {
      const ReleasedGil released;
      return Wait(At(word), seen, At(sleeps), file, spin_end, std::min(end, Clock::now() + kSlice));
    }();
    if (waited == Waited::kChanged) return PyLong_FromUnsignedLongLong(At(word).load(std::memory_order_acquire));
    if (waited == Waited::kEnded) {
      PyErr_SetString(PyExc_EOFError, "the other process has ended");
      return nullptr;
    }
    if (PyErr_CheckSignals() != 0) return nullptr;
    if (Clock::now() >= end) Py_RETURN_NONE;
  }
}

}  // namespace lz::python
