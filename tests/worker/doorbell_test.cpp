#include "worker/doorbell.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace lz::worker {
namespace {

using Clock = Doorbell::Clock;

struct Sides {
  Sides() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, files), 0); }
  ~Sides() {
    close(files[0]);
    if (files[1] >= 0) close(files[1]);
  }
  alignas(64) char memory[512] = {};
  int files[2];
  Doorbell bell{memory, kRequestsWord};
};

TEST(Doorbell, WakesASideThatSpinsAndOneThatSleeps) {
  for (const auto spin : {Clock::duration(0), Clock::duration(std::chrono::seconds(20))}) {
    Sides sides;
    std::thread other([&] {
      for (uint64_t i = 1; i <= 200; ++i) {
        while (Doorbell(sides.memory, kResponsesWord).Number() != i - 1) std::this_thread::yield();
        if (i % 3 == 0) sides.bell.Announce(sides.files[1]);
        EXPECT_TRUE(sides.bell.Ring(i, sides.files[1]));
      }
    });
    Patience patience(spin), announced(spin);
    for (uint64_t i = 1; i <= 200; ++i) {
      EXPECT_EQ(sides.bell.Wait(i - 1, sides.files[0], patience, announced, Clock::now() + std::chrono::seconds(20)),
                Waited::kChanged);
      EXPECT_EQ(sides.bell.Number(), i);
      Doorbell(sides.memory, kResponsesWord).Ring(i, sides.files[0]);
    }
    other.join();
  }
}

TEST(Doorbell, ATimeLimitAndAnEndAreReported) {
  Sides sides;
  Patience none;
  const auto soon = [] { return Clock::now() + std::chrono::milliseconds(20); };
  EXPECT_EQ(sides.bell.Wait(0, sides.files[0], none, none, soon()), Waited::kTimeout);
  EXPECT_EQ(write(sides.files[1], "noise", 5), 5);
  EXPECT_EQ(sides.bell.Wait(0, sides.files[0], none, none, soon()), Waited::kTimeout);
  close(sides.files[1]);
  sides.files[1] = -1;
  EXPECT_EQ(sides.bell.Wait(0, sides.files[0], none, none, soon()), Waited::kEnded);
  EXPECT_TRUE(sides.bell.Ring(1, sides.files[0]));  // nobody sleeps
  EXPECT_EQ(sides.bell.Wait(0, sides.files[0], none, none, soon()), Waited::kChanged);
}

TEST(Doorbell, ASideSpinsAsLongAsThatPays) {
  constexpr auto kMost = std::chrono::microseconds(64);
  Patience patience(kMost);
  Clock::duration total{};
  for (int i = 0; i < 320; ++i) {
    total += patience.Next();
    patience.Ended(false);
  }
  EXPECT_LT(total, 14 * kMost);  // at first, and once in 32 waits
  while (patience.Next() != kMost) {
  }
  patience.Ended(true);
  EXPECT_EQ(patience.Next(), kMost);
}

}  // namespace
}  // namespace lz::worker
