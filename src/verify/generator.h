// Random numbers for tests: small, seeded by any number, the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>

namespace lz::verify {

// SplitMix64 (Steele, Lea and Flood 2014).
class Generator {
 public:
  explicit Generator(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  double Uniform() { return double(Next() >> 11) * 0x1p-53; }
  double Normal() {  // Box and Muller
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    return radius * std::cos(2 * std::numbers::pi * Uniform());
  }
  int64_t Below(int64_t n) { return n <= 1 ? 0 : int64_t(Next() % uint64_t(n)); }
  bool Chance(double p) { return Uniform() < p; }
  template <class T>
  T Pick(std::initializer_list<T> values) {
    return values.begin()[Below(int64_t(values.size()))];
  }

 private:
  uint64_t state_;
};

}  // namespace lz::verify
