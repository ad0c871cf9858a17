#include "base/team.h"

#include <sched.h>

#include <algorithm>

namespace lz {
namespace {

constexpr uint64_t kOne = 1;
constexpr int kPartsShift = 16, kLoopShift = 32;
constexpr int64_t kPartsOfAThread = 2;  // the second part balances what the first left
constexpr unsigned kSpins = 20000;      // about 0.1 ms: then other threads may need the core

int64_t PartsOf(uint64_t ticket) { return int64_t(ticket >> kPartsShift & 0xffff); }
int64_t NextOf(uint64_t ticket) { return int64_t(ticket & 0xffff); }
int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

class Spin {
 public:
  void Wait() {
    if (++spins_ % kSpins == 0) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

 private:
  unsigned spins_ = 0;
};

}  // namespace

lz_parallel Team::AsParallel() {
  const auto run = [](void* self, int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
    static_cast<Team*>(self)->Loop(begin, end, grain, body, context);
  };
  return {run, this, over_.load(std::memory_order_relaxed) ? 1 : max_threads_};
}

bool Team::TakePart(uint64_t ticket) {
  const int64_t part = NextOf(ticket);
  if (part >= PartsOf(ticket)) return false;
  if (!ticket_.compare_exchange_weak(ticket, ticket + kOne, std::memory_order_acq_rel)) return true;  // check again
  const int64_t begin = begin_ + part * size_;
  body_(begin, std::min(begin + size_, end_), context_);
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

void Team::Work() {
  workers_.fetch_add(1, std::memory_order_relaxed);
  Spin spin;
  while (!over_.load(std::memory_order_acquire)) {
    if (!TakePart(ticket_.load(std::memory_order_acquire))) spin.Wait();
  }
  workers_.fetch_sub(1, std::memory_order_relaxed);
}

void Team::Loop(int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
  const int64_t count = end - begin, threads = workers_.load(std::memory_order_relaxed) + 1;
  if (count <= 0) return;
  if (looping_) return body(begin, end, context);
  looping_ = true;
  grain = std::max<int64_t>(grain, 1);
  if (threads == 1 || count <= grain) {
    body(begin, end, context);
  } else {
    Share(begin, end, std::max(grain, CeilDiv(count, threads * kPartsOfAThread)), body, context);
  }
  looping_ = false;
}

void Team::Share(int64_t begin, int64_t end, int64_t size, lz_parallel_body body, void* context) {
  begin_ = begin, end_ = end, size_ = size, body_ = body, context_ = context;
  const int64_t parts = CeilDiv(end - begin, size);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t loop = (ticket_.load(std::memory_order_relaxed) >> kLoopShift) + 1;
  ticket_.store(loop << kLoopShift | uint64_t(parts) << kPartsShift, std::memory_order_release);
  while (TakePart(ticket_.load(std::memory_order_acquire))) {
  }
  for (Spin spin; done_.load(std::memory_order_acquire) < parts;) spin.Wait();
}

}  // namespace lz
