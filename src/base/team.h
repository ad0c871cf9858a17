// Threads that stay together for one run of many short parallel loops: between two loops they spin instead of returning
// to their pool, so a loop costs a transfer between two caches and not a wake-up.
//
//   Team team;
//   team.Run(pool, [&] { ...; kernel(team.AsParallel()); ... });
//
// Code that a run calls loops on the team, not on the pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "layerzero/c_abi.h"

namespace lz {

class Team {
 public:
  Team() = default;
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Runs main() on the first thread of the pool that arrives; the others work for it until it returns. No thread is
  // waited for: with a pool of one, or one that is busy, main() runs its loops alone.
  template <class Main>
  void Run(const lz_parallel& pool, Main&& main) {
    if (!pool.run || pool.num_threads <= 1) return main();
    led_.store(false, std::memory_order_relaxed);
    over_.store(false, std::memory_order_relaxed);
    max_threads_ = pool.num_threads;
    auto part = [&] {
      if (led_.exchange(true, std::memory_order_acq_rel)) return Work();
      main();
      over_.store(true, std::memory_order_release);
    };
    pool.run(
        pool.self, 0, pool.num_threads, 1,
        [](int64_t, int64_t, void* context) { (*static_cast<decltype(part)*>(context))(); }, &part);
  }

  // For main() and what it calls. A nested loop runs on the thread that calls it, also if no other thread joined the
  // outer loop.
  lz_parallel AsParallel();

 private:
  void Loop(int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context);
  void Share(int64_t begin, int64_t end, int64_t size, lz_parallel_body body, void* context);
  void Work();
  bool TakePart(uint64_t ticket);

  // loop number << 32 | parts << 16 | next part. A thread that advances it has a part of exactly that loop, whose
  // fields below stay until every part is done.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int32_t> done_{0};     // finished parts of this loop
  std::atomic<int32_t> workers_{0};  // threads at work now
  std::atomic<bool> led_{false};     // a thread has taken main()
  std::atomic<bool> over_{true};
  int32_t max_threads_ = 1;
  bool looping_ = false;  // within a loop, also if no other thread joined it
  int64_t begin_ = 0, end_ = 0, size_ = 0;
  lz_parallel_body body_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace lz
