// Philox4x32-10, the counter-based generator of the sampling operations: a draw depends only on (seed, offset,
// row, slot).
//   double u = PhiloxUniform(seed, offset, row, 0);  // in [0, 1), a multiple of 2^-53
// Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", table 2 (constants),
// 10 rounds.
#pragma once

#include <array>
#include <cstdint>

namespace lz {

constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {uint32_t(p1 >> 32) ^ counter[1] ^ key[0], uint32_t(p1), uint32_t(p0 >> 32) ^ counter[3] ^ key[1],
               uint32_t(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Key = seed; counter = (offset, row mod 2^32, slot), 64-bit values low word first. The draw is the top 53 bits of the
// 64-bit number whose high half is output word 0 and whose low half is word 1. Slot 0 is the token's draw of the
// sample_* operations; speculative_sample takes 1 + 2 i (acceptance of draft i) and 2 + 2 i (the token at position i).
constexpr double PhiloxUniform(int64_t seed, int64_t offset, int64_t row, uint32_t slot) {
  const auto s = uint64_t(seed), o = uint64_t(offset);
  const auto w =
      Philox4x32({uint32_t(o), uint32_t(o >> 32), uint32_t(uint64_t(row)), slot}, {uint32_t(s), uint32_t(s >> 32)});
  const uint64_t bits = (uint64_t{w[0]} << 21) | (w[1] >> 11);
  return double(bits) * 0x1p-53;
}

}  // namespace lz
