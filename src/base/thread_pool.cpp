#include "base/thread_pool.h"

#include <pthread.h>

#include <algorithm>

#include "base/usable_cpus.h"

namespace lz {
namespace {
thread_local bool t_inside = false;
constexpr int kSpins = 2000;  // about 10 us: usually the next operation of a model comes sooner

inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::atomic<ThreadPool*> g_pool{nullptr};
std::atomic<bool> g_forked{false};
}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads <= 0) num_threads = UsableCpus();
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::TakeParts(const Job& job) {
  t_inside = true;
  while (true) {
    const int64_t begin = next_.fetch_add(job.part, std::memory_order_relaxed);
    if (begin >= job.end) break;
    job.body(begin, std::min(begin + job.part, job.end), job.context);
  }
  t_inside = false;
}

void ThreadPool::Work() {
  uint64_t seen = 0;
  while (true) {
    for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) Relax();
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
      seen = generation_.load(std::memory_order_relaxed);
      if (stop_) return;
      if (next_.load(std::memory_order_relaxed) >= job_.end) continue;  // woke too late: nothing left
      job = job_;
      running_.fetch_add(1, std::memory_order_relaxed);
    }
    TakeParts(job);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::Run(int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
  if (begin >= end) return;
  const int64_t count = end - begin;
  grain = std::max<int64_t>(grain, 1);
  if (t_inside || workers_.empty() || count <= grain) {
    body(begin, end, context);
    return;
  }
  std::lock_guard turn(turn_);
  const int64_t threads = int64_t(workers_.size()) + 1;
  const Job job{begin, end, std::max(grain, (count + threads - 1) / threads), body, context};
  {
    std::lock_guard lock(mutex_);
    job_ = job;
    next_.store(begin, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  TakeParts(job);
  {
    // No worker may join this job any more, whatever woke it. `next_` stays past the end, because others still read it.
    std::lock_guard lock(mutex_);
    job_.end = begin;
  }
  while (running_.load(std::memory_order_acquire) != 0) Relax();
}

lz_parallel ThreadPool::AsParallel() {
  return {[](void* self, int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
            static_cast<ThreadPool*>(self)->Run(begin, end, grain, body, context);
          },
          this, num_threads()};
}

lz_parallel ThreadPool::ProcessParallel() {
  static const int cpus = UsableCpus();
  static const bool registered = pthread_atfork(nullptr, nullptr, [] { g_forked.store(true); }) == 0;
  (void)registered;
  const auto run = [](void*, int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
    if (g_forked.load(std::memory_order_relaxed)) return body(begin, end, context);
    ThreadPool* pool = g_pool.load(std::memory_order_acquire);
    if (!pool) {
      static std::mutex starting;
      std::lock_guard lock(starting);
      pool = g_pool.load(std::memory_order_relaxed);
      if (!pool) g_pool.store(pool = new ThreadPool(cpus), std::memory_order_release);  // never stopped: see fork
    }
    pool->Run(begin, end, grain, body, context);
  };
  return {run, nullptr, g_forked.load(std::memory_order_relaxed) ? 1 : cpus};
}

}  // namespace lz
