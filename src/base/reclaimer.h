// Deferred deletion for structures that readers walk without locks. A reader pays two plain stores; the writer pays for
// the fence, on all threads at once (membarrier), before it checks whether a reader may still hold what it unlinked.
//
//   { Reclaimer::Guard guard; const Table* t = table.load(std::memory_order_acquire); ... }   // reader
//   reclaimer.Retire([old] { delete old; });                                    // writer, after unlinking
//
// Source of the scheme: epoch based reclamation (Fraser 2004, UCAM-CL-TR-579); asymmetric fences by membarrier(2).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace lz {

class Reclaimer {
  struct alignas(64) Slot {
    std::atomic<uint64_t> active{0};  // 0: not reading; otherwise the epoch at which the reader entered
    std::atomic<bool> taken{false};
    Slot* next = nullptr;
  };

 public:
  static Reclaimer& Get();

  class Guard {
   public:
    Guard() : slot_(local_ ? local_ : LocalSlot()), outer_(slot_->active.load(std::memory_order_relaxed)) {
      if (outer_ != 0) return;  // nested in another guard of this thread, which began earlier
      // Acquire: a thread that reads an epoch sees what was unlinked before it began.
      const uint64_t epoch = epoch_.load(std::memory_order_acquire);
#if defined(__SANITIZE_THREAD__)  // it knows neither fences nor membarrier
      slot_->active.exchange(epoch, std::memory_order_seq_cst);
#else
      slot_->active.store(epoch, std::memory_order_relaxed);
      if (needs_fence_) {
        std::atomic_thread_fence(std::memory_order_seq_cst);
      } else {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
#endif
    }
    ~Guard() { slot_->active.store(outer_, std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Slot* slot_;
    uint64_t outer_;
  };

  // Runs `free` when no reader that entered before this call is left: now, or at a later Retire.
  void Retire(std::function<void()> free);
  size_t num_waiting() const;

 private:
  struct Waiting {
    uint64_t epoch;
    std::function<void()> free;
  };
  struct Registered;
  static Slot* LocalSlot();
  static Slot* TakeSlot();
  static void FenceReaders();

  // One load in position-independent code. LocalSlot owns the object that returns the slot.
  __attribute__((tls_model("initial-exec"))) static constinit thread_local Slot* local_;
  inline static std::atomic<uint64_t> epoch_{1};
  inline static std::atomic<Slot*> slots_{nullptr};
  static const bool needs_fence_;
  mutable std::mutex mutex_;
  std::vector<Waiting> waiting_;
};

}  // namespace lz
