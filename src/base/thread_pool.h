// A fork-join pool, for processes that have no threads to lend. With torch loaded, torch's own threads are used instead
// (two pools that spin cost milliseconds). Workers sleep between calls after a short spin.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "layerzero/c_abi.h"

namespace lz {

class ThreadPool {
 public:
  // num_threads includes the caller. 0: as many as UsableCpus() returns.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();

  // Runs parts of [begin, end) on the pool and the caller. Calls from several threads take turns; a call from within a
  // part runs on its own thread.
  void Run(int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context);
  lz_parallel AsParallel();
  int num_threads() const { return int(workers_.size()) + 1; }

  // The process's pool; started at the first call with more than one grain. A forked child runs on one thread.
  static lz_parallel ProcessParallel();

 private:
  struct Job {
    int64_t begin, end, part;
    lz_parallel_body body;
    void* context;
  };
  void Work();
  void TakeParts(const Job& job);

  std::mutex turn_;  // one job at a time
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<int> running_{0};
  Job job_{};
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace lz
