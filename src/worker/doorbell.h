// Waking between a process and a worker. Each side publishes a message by storing its number in a word of their shared
// memory; the other side spins for a while and then sleeps in poll() on a socketpair, which also says that the other
// side has ended. A byte is sent only to a side that sleeps.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/export.h"

namespace lz::worker {

// Offsets of 64-bit words, each in a cache line of its own.
inline constexpr uint64_t kMagicWord = 0;
inline constexpr uint64_t kRequestsWord = 64;    // number of the last request
inline constexpr uint64_t kResponsesWord = 128;  // number of the last response
inline constexpr uint64_t kMagic = 0x315A4C52454B524F;

enum class Waited { kChanged, kTimeout, kEnded };

// How long a side spins before it sleeps: not at all while that does not pay, because the other side needs this
// processor or takes longer. Tries again now and then.
class LZ_OWN Patience {
 public:
  using Clock = std::chrono::steady_clock;

  Patience() = default;
  explicit Patience(Clock::duration most) : most_(most), now_(most) {}
  Clock::duration Next() { return ++waits_ % 32 == 0 ? most_ : now_; }
  void Ended(bool in_time) { now_ = in_time ? most_ : now_ / 2; }

 private:
  Clock::duration most_{}, now_{};
  uint32_t waits_ = 0;
};

// One direction: the word, and the word that is not 0 while its reader sleeps.
class LZ_OWN Doorbell {
 public:
  using Clock = std::chrono::steady_clock;

  // `word`: kRequestsWord or kResponsesWord.
  Doorbell(char* memory, uint64_t word) : word_(memory + word), sleeps_(memory + word + 128) {}

  // Publishes message number `value`. False: the other side has closed `file`, its socket; errno has the error.
  bool Ring(uint64_t value, int file) const;
  // Wakes the other side if it sleeps: a message follows soon.
  void Announce(int file) const;
  // Waits until the word is not `seen`: spins for a while, then sleeps until `end`. `announced`: after an Announce().
  Waited Wait(uint64_t seen, int file, Patience& spin, Patience& announced, Clock::time_point end) const;
  uint64_t Number() const;

 private:
  Waited Sleep(uint64_t seen, int file, Patience& announced, Clock::time_point end) const;
  bool Spin(uint64_t seen, Patience& patience) const;

  char *word_, *sleeps_;
};

}  // namespace lz::worker
