#include "base/reclaimer.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lz {
namespace {
bool RegisterMembarrier() { return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0; }
[[maybe_unused]] void FenceAllThreads() { syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0); }
}  // namespace

const bool Reclaimer::needs_fence_ = !RegisterMembarrier();
constinit thread_local Reclaimer::Slot* Reclaimer::local_ = nullptr;

// Returns the thread's slot when the thread ends; slots are reused, never freed.
struct Reclaimer::Registered {
  Slot* slot = TakeSlot();
  ~Registered() {
    local_ = nullptr;
    slot->active.store(0, std::memory_order_release);
    slot->taken.store(false, std::memory_order_release);
  }
};

void Reclaimer::FenceReaders() {
#if !defined(__SANITIZE_THREAD__)  // readers then enter with a full barrier of their own
  if (needs_fence_) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  } else {
    FenceAllThreads();
  }
#endif
}

Reclaimer& Reclaimer::Get() {
  static Reclaimer* const reclaimer = new Reclaimer;  // never destroyed: threads may end after main
  return *reclaimer;
}

Reclaimer::Slot* Reclaimer::TakeSlot() {
  for (Slot* s = slots_.load(std::memory_order_acquire); s; s = s->next) {
    bool free = false;
    if (s->taken.compare_exchange_strong(free, true, std::memory_order_acq_rel)) return s;
  }
  Slot* s = new Slot;
  s->taken.store(true, std::memory_order_relaxed);
  s->next = slots_.load(std::memory_order_relaxed);
  while (!slots_.compare_exchange_weak(s->next, s, std::memory_order_acq_rel)) {
  }
  return s;
}

Reclaimer::Slot* Reclaimer::LocalSlot() {
  thread_local Registered registered;
  return local_ = registered.slot;
}

void Reclaimer::Retire(std::function<void()> free) {
  std::vector<Waiting> ready;
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back({epoch_.fetch_add(1, std::memory_order_acq_rel), std::move(free)});
    FenceReaders();
    uint64_t oldest = UINT64_MAX;
    for (Slot* s = slots_.load(std::memory_order_acquire); s; s = s->next) {
      const uint64_t active = s->active.load(std::memory_order_acquire);
      if (active != 0 && active < oldest) oldest = active;
    }
    std::erase_if(waiting_, [&](Waiting& w) {
      if (w.epoch >= oldest) return false;
      ready.push_back(std::move(w));
      return true;
    });
  }
  for (Waiting& w : ready) w.free();
}

size_t Reclaimer::num_waiting() const {
  std::lock_guard lock(mutex_);
  return waiting_.size();
}

}  // namespace lz
