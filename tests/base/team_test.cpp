// A team's loops: every index once, whoever comes, early, late or never.
#include "base/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "base/thread_pool.h"

namespace lz {
namespace {

// Calls body(begin, end) through the C interface.
template <class Body>
void Loop(const lz_parallel& parallel, int64_t begin, int64_t end, int64_t grain, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  parallel.run(
      parallel.self, begin, end, grain,
      [](int64_t b, int64_t e, void* context) { (*static_cast<Plain*>(context))(b, e); }, &body);
}

// How often a loop has given each index.
class Counts {
 public:
  explicit Counts(int64_t n) : counts_(size_t(n)) {}
  void operator()(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) counts_[size_t(i)].fetch_add(1, std::memory_order_relaxed);
  }
  bool AllAre(int wanted) const {
    for (const auto& count : counts_) {
      if (count.load(std::memory_order_relaxed) != wanted) return false;
    }
    return true;
  }

 private:
  std::vector<std::atomic<int>> counts_;
};

// A pool that calls its parts as `schedule` says.
struct ScriptedPool {
  using Part = std::function<void(int64_t)>;
  std::function<void(int64_t count, const Part&)> schedule;
  int32_t threads = 4;

  lz_parallel AsParallel() {
    const auto run = [](void* self, int64_t begin, int64_t end, int64_t, lz_parallel_body body, void* context) {
      static_cast<ScriptedPool*>(self)->schedule(end - begin,
                                                 [&](int64_t i) { body(begin + i, begin + i + 1, context); });
    };
    return {run, this, threads};
  }
};

void ExpectLoopsWork(Team& team, const lz_parallel& pool) {
  Counts counts(1000);
  int mains = 0;
  team.Run(pool, [&] {
    ++mains;
    for (int i = 0; i < 10; ++i) Loop(team.AsParallel(), 0, 1000, 7, counts);
  });
  EXPECT_EQ(mains, 1);
  EXPECT_TRUE(counts.AllAre(10));
}

TEST(Team, LoopsOfEverySizeAndGrainGiveEachIndexOnce) {
  ThreadPool pool(3);
  Team team;
  team.Run(pool.AsParallel(), [&] {
    for (int64_t n = 0; n < 70; ++n) {
      for (int64_t grain : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{2}, int64_t{5}, n - 1, n, n + 1,
                            std::numeric_limits<int64_t>::max()}) {
        Counts counts(n);
        Loop(team.AsParallel(), 0, n, grain, counts);
        ASSERT_TRUE(counts.AllAre(1)) << n << " by " << grain;
      }
    }
  });
}

TEST(Team, PartsHoldAtLeastOneGrainButTheLast) {
  ThreadPool pool(4);
  Team team;
  team.Run(pool.AsParallel(), [&] {
    for (int64_t n = 1; n < 60; ++n) {
      for (int64_t grain = 1; grain <= n; ++grain) {
        std::atomic<int> small{0};
        auto body = [&](int64_t begin, int64_t end) { small += end < n + 100 && end - begin < grain; };
        Loop(team.AsParallel(), 100, n + 100, grain, body);
        ASSERT_EQ(small, 0) << n << " by " << grain;
      }
    }
  });
}

TEST(Team, ManyLoopsInARowSeeWhatTheOneBeforeWrote) {
  ThreadPool pool(4);
  Team team;
  constexpr int64_t kItems = 64;
  std::vector<int64_t> values(kItems), shifted(kItems);
  for (int run = 0; run < 5; ++run) {
    team.Run(pool.AsParallel(), [&] {
      for (int i = 0; i < 2000; ++i) {
        auto shift = [&](int64_t begin, int64_t end) {
          for (int64_t k = begin; k < end; ++k) shifted[size_t(k)] = values[size_t((k + 1) % kItems)] + 1;
        };
        Loop(team.AsParallel(), 0, kItems, 1, shift);
        std::swap(values, shifted);
      }
    });
  }
  for (int64_t value : values) EXPECT_EQ(value, 10000);
}

TEST(Team, APoolOfOneThreadOrNoneLeavesMainAlone) {
  Team team;
  ThreadPool one(1);
  ExpectLoopsWork(team, one.AsParallel());
  ExpectLoopsWork(team, lz_parallel{nullptr, nullptr, 8});
  team.Run(one.AsParallel(), [&] { EXPECT_EQ(team.AsParallel().num_threads, 1); });
}

TEST(Team, KernelsAreToldHowManyThreadsMayCome) {
  Team team;
  ThreadPool pool(3);
  EXPECT_EQ(team.AsParallel().num_threads, 1);
  team.Run(pool.AsParallel(), [&] { EXPECT_EQ(team.AsParallel().num_threads, 3); });
  EXPECT_EQ(team.AsParallel().num_threads, 1);
}

TEST(Team, LoopsOutsideOfARunGoOnTheirThread) {
  Team team;
  Counts counts(100);
  Loop(team.AsParallel(), 0, 100, 1, counts);
  EXPECT_TRUE(counts.AllAre(1));
}

TEST(Team, OtherThreadsMayNeverCome) {
  Team team;
  for (int64_t only : {0, 3}) {
    ScriptedPool pool{[&](int64_t, const auto& part) { part(only); }};
    ExpectLoopsWork(team, pool.AsParallel());
  }
}

TEST(Team, PartsMayComeInAnyOrderOnOneThread) {
  Team team;
  ScriptedPool backwards{[](int64_t count, const auto& part) {
    for (int64_t i = count; i-- > 0;) part(i);
  }};
  ExpectLoopsWork(team, backwards.AsParallel());
}

TEST(Team, OtherThreadsMayComeLate) {
  Team team;
  ScriptedPool pool{[](int64_t count, const auto& part) {
    std::deque<std::thread> late;
    for (int64_t i = 1; i < count; ++i) {
      late.emplace_back([&part, i] {
        std::this_thread::sleep_for(std::chrono::milliseconds(i));
        part(i);
      });
    }
    part(0);
    for (std::thread& thread : late) thread.join();
  }};
  Counts counts(64);
  team.Run(pool.AsParallel(), [&] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(8);
    int loops = 0;
    while (std::chrono::steady_clock::now() < until || loops < 50) {
      Counts one(64);
      Loop(team.AsParallel(), 0, 64, 1, one);
      ASSERT_TRUE(one.AllAre(1));
      ++loops;
    }
    Loop(team.AsParallel(), 0, 64, 1, counts);
  });
  EXPECT_TRUE(counts.AllAre(1));
}

TEST(Team, ALoopInsideAPartRunsOnThePartsThread) {
  ThreadPool pool(4);
  Team team;
  Counts counts(16 * 16);
  team.Run(pool.AsParallel(), [&] {
    auto outer = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const std::thread::id here = std::this_thread::get_id();
        auto inner = [&](int64_t b, int64_t e) {
          EXPECT_EQ(std::this_thread::get_id(), here);
          counts(i * 16 + b, i * 16 + e);
        };
        Loop(team.AsParallel(), 0, 16, 1, inner);
      }
    };
    for (int k = 0; k < 20; ++k) Loop(team.AsParallel(), 0, 16, 1, outer);
  });
  EXPECT_TRUE(counts.AllAre(20));
}

// The outer loop found its thread alone; threads that come while it runs do not take parts of the loops inside.
TEST(Team, ALoopInsideALoopThatIsNotSharedStaysOnItsThread) {
  std::atomic<bool> outer_runs{false};
  ScriptedPool pool{[&](int64_t, const auto& part) {
    std::thread late([&] {
      while (!outer_runs) std::this_thread::yield();
      part(1);
    });
    part(0);
    late.join();
  }};
  Team team;
  Counts counts(16);
  team.Run(pool.AsParallel(), [&] {
    const std::thread::id here = std::this_thread::get_id();
    std::atomic<int> elsewhere{0};
    auto inner = [&](int64_t begin, int64_t end) {
      elsewhere += std::this_thread::get_id() != here;
      counts(begin, end);
    };
    auto outer = [&](int64_t, int64_t) {
      outer_runs = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (int i = 0; i < 1000; ++i) Loop(team.AsParallel(), 0, 16, 1, inner);
    };
    Loop(team.AsParallel(), 0, 4, 1, outer);
    EXPECT_EQ(elsewhere, 0);
  });
  EXPECT_TRUE(counts.AllAre(1000));
}

// A program inside a program: its team has the outer one for a pool, between loops and inside of one.
TEST(Team, ATeamMayBeThePoolOfAnother) {
  ThreadPool pool(4);
  Team outer, between;
  Counts counts(64);
  outer.Run(pool.AsParallel(), [&] {
    between.Run(outer.AsParallel(), [&] {
      for (int i = 0; i < 50; ++i) Loop(between.AsParallel(), 0, 64, 1, counts);
    });
    auto body = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Team inside;
        inside.Run(outer.AsParallel(), [&] {
          auto one = [&](int64_t b, int64_t e) { counts(i * 4 + b, i * 4 + e); };
          Loop(inside.AsParallel(), 0, 4, 1, one);
        });
      }
    };
    Loop(outer.AsParallel(), 0, 16, 1, body);
  });
  EXPECT_TRUE(counts.AllAre(51));
}

TEST(ThreadPool, GivesEachIndexOnce) {
  ThreadPool pool(3);
  for (int i = 0; i < 3000; ++i) {
    Counts counts(9);
    Loop(pool.AsParallel(), 0, 9, 1, counts);
    ASSERT_TRUE(counts.AllAre(1)) << i;
  }
}

// The caller is through while the other thread still works on its part: that one must not find the loop's parts again.
TEST(ThreadPool, ALateThreadRunsNoPartTwice) {
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  for (int i = 0; i < 100; ++i) {
    Counts counts(2);
    std::atomic<bool> joined{false};
    auto body = [&](int64_t begin, int64_t end) {
      counts(begin, end);
      if (std::this_thread::get_id() == caller) {
        const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
        while (!joined && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
      } else {
        joined = true;
        std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
    };
    Loop(pool.AsParallel(), 0, 2, 1, body);
    ASSERT_TRUE(counts.AllAre(1)) << i;
  }
}

// Threads that call at once: their teams share the pool's threads and nobody waits for ever.
TEST(Team, TeamsOfManyThreadsShareOnePool) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> done{0};
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      Team team;
      for (int i = 0; i < 20; ++i) ExpectLoopsWork(team, pool.AsParallel());
      ++done;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 4);
}

}  // namespace
}  // namespace lz
