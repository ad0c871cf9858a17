// Threads on one KV cache manager: every block has one writer, and nothing is lost in the end.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "kvcache/manager.h"

namespace lz::kvcache {
namespace {

TEST(KvCacheRace, NoBlockHasTwoWriters) {
  constexpr int kThreads = 8, kSteps = 400, kBlocks = 64, kSize = 4;
  auto made = Manager::Make({Strategy::kPaged, kBlocks, kSize, true});
  Manager& m = **made;
  // A row belongs to whoever may write it: rows of shared blocks to nobody.
  std::vector<std::atomic<int>> writer(size_t(kBlocks * kSize));
  std::atomic<int> collisions{0};
  const auto work = [&](int me) {
    std::mt19937 random{unsigned(me)};
    for (int step = 0; step < kSteps; ++step) {
      std::vector<int32_t> tokens(1 + random() % 12);
      for (int32_t& t : tokens) t = int32_t(random() % 2);
      auto a = m.Allocate(me * 1000 + step % 3, int64_t(tokens.size()), tokens, 0);
      if (!a.ok()) continue;
      std::vector<int64_t> mine(tokens.size() - size_t(a->num_cached_tokens));
      if (!m.Slots(a->handle, a->num_cached_tokens, int64_t(tokens.size()), mine).ok()) ++collisions;
      for (int64_t slot : mine) collisions += writer[size_t(slot)].exchange(me + 1) != 0;
      std::vector<int32_t> table(8), lens(1);
      const Handle handle = a->handle;
      if (!m.BlockTables(std::span(&handle, 1), table, 8, lens).ok()) ++collisions;
      for (int64_t slot : mine) collisions += writer[size_t(slot)].exchange(0) != me + 1;
      if (!m.Commit(handle).ok() || !m.Free(handle).ok()) ++collisions;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(collisions, 0);
  const Stats stats = m.GetStats();
  EXPECT_EQ(stats.num_sequences, 0);
  EXPECT_EQ(stats.num_free + stats.num_idle, kBlocks);
}

}  // namespace
}  // namespace lz::kvcache
