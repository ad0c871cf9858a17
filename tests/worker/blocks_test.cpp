#include "worker/blocks.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "worker/message.h"

namespace lz::worker {
namespace {

TEST(WorkerBlocks, DoNotOverlapAndAreJoinedAgain) {
  constexpr uint64_t kSize = 1 << 22;
  Blocks blocks(kSize);
  std::mt19937 random(3);
  std::map<uint64_t, uint64_t> held;
  for (int i = 0; i < 20000; ++i) {
    if (!held.empty() && random() % 2) {
      const auto one = std::next(held.begin(), long(random() % held.size()));
      random() % 2 ? blocks.ReleaseLater(one->first) : blocks.Release(one->first);
      held.erase(one);
      continue;
    }
    uint64_t size = 1 + random() % 60000;
    const auto offset = blocks.Allocate(size);
    if (!offset) continue;
    if (random() % 3 == 0) {
      size = 1 + random() % size;
      blocks.Shrink(*offset, size);
    }
    for (const auto& [other, taken] : held) ASSERT_TRUE(*offset + size <= other || other + taken <= *offset);
    ASSERT_TRUE(*offset >= kDataAt && *offset + size <= kSize && *offset % kAlignment == 0);
    held[*offset] = size;
  }
  for (const auto& [offset, size] : held) blocks.Release(offset);
  ASSERT_TRUE(blocks.Allocate(1).has_value());
  EXPECT_EQ(blocks.held(), kAlignment);
  EXPECT_EQ(blocks.free_parts(), 1u);
  EXPECT_EQ(blocks.most(), kSize - kDataAt - kAlignment);
}

TEST(WorkerBlocks, ThreadsReleaseLater) {
  Blocks blocks(1 << 22);
  std::vector<uint64_t> offsets;
  for (int i = 0; i < 4000; ++i) offsets.push_back(*blocks.Allocate(64));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < offsets.size(); i += 4) blocks.ReleaseLater(offsets[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(blocks.Allocate(64).has_value());
  EXPECT_EQ(blocks.held(), 64u);
}

TEST(WorkerBlocks, WhatIsPinnedIsNeverUsedAgain) {
  Blocks blocks(1 << 20);
  const uint64_t offset = *blocks.Allocate(4096);
  blocks.Pin();
  blocks.Release(offset);
  while (const auto other = blocks.Allocate(4096)) EXPECT_NE(*other, offset);
  EXPECT_TRUE(blocks.is_pinned());
}

}  // namespace
}  // namespace lz::worker
