// Deferred deletion: nothing is freed while a reader that may hold it is inside its guard.
#include "base/reclaimer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace lz {
namespace {

TEST(Reclaimer, FreesAtOnceWithoutReaders) {
  bool freed = false;
  Reclaimer::Get().Retire([&] { freed = true; });
  EXPECT_TRUE(freed);
}

TEST(Reclaimer, WaitsForAReaderThatEnteredBefore) {
  std::atomic<int> stage = 0;
  std::atomic<bool> freed = false;
  std::thread reader([&] {
    Reclaimer::Guard guard;
    stage = 1;
    while (stage.load() != 2) std::this_thread::yield();
    EXPECT_FALSE(freed);
  });
  while (stage.load() != 1) std::this_thread::yield();
  Reclaimer::Get().Retire([&] { freed = true; });
  EXPECT_FALSE(freed);
  EXPECT_GE(Reclaimer::Get().num_waiting(), 1u);
  stage = 2;
  reader.join();
  Reclaimer::Get().Retire([] {});
  EXPECT_TRUE(freed);
  EXPECT_EQ(Reclaimer::Get().num_waiting(), 0u);
}

TEST(Reclaimer, ALaterReaderDoesNotHoldWhatWasRetiredBefore) {
  bool freed = false;
  Reclaimer::Get().Retire([&] { freed = true; });
  Reclaimer::Guard guard;
  EXPECT_TRUE(freed);
}

TEST(Reclaimer, SlotsOfEndedThreadsServeNewOnes) {
  for (int i = 0; i < 200; ++i) {
    std::thread([] { Reclaimer::Guard guard; }).join();
  }
  bool freed = false;
  Reclaimer::Get().Retire([&] { freed = true; });
  EXPECT_TRUE(freed);
}

TEST(Reclaimer, WhatIsFreedMayRetireMore) {
  bool second = false;
  Reclaimer::Get().Retire([&] { Reclaimer::Get().Retire([&] { second = true; }); });
  EXPECT_TRUE(second);
}

}  // namespace
}  // namespace lz
