// SelectThreshold equals a sort: counts exactly, masses within rounding, on large rows and every instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/sampling/common/select_test.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/sampling/common/select.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {

// value, ties
std::array<double, 2> Select(const float* x, const float* w, int64_t n, double mass, double target, float* memory) {
  const int64_t room = n + 64;
  const sampler::SelectBuffers buffers = {{memory, memory + room}, {memory + 2 * room, memory + 3 * room}};
  const sampler::Threshold t = sampler::SelectThreshold(sampler::Tag(), x, w, n, mass, target, buffers);
  return {t.value, double(t.ties)};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>
#include <vector>

namespace lz {
namespace {
HWY_EXPORT(Select);

template <class Body>
void ForEachTarget(Body&& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    SCOPED_TRACE(hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

std::vector<std::vector<float>> Rows(size_t n) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const std::vector<std::function<float(size_t)>> shapes = {
      [&](size_t) { return normal(random); },
      [&](size_t) { return std::round(2 * normal(random)); },
      [&](size_t) { return 0.0f; },
      [&](size_t i) { return float(i % 256 == 0 ? 5 : -1); },  // a strided sample sees one value only
      [&](size_t i) { return float(i); },
      [&](size_t i) { return i % 3 ? -std::numeric_limits<float>::infinity() : normal(random); },
  };
  std::vector<std::vector<float>> rows;
  for (const auto& shape : shapes) {
    rows.emplace_back(n);
    for (size_t i = 0; i < n; ++i) rows.back()[i] = shape(i);
  }
  return rows;
}

TEST(SelectThreshold, CountIsTheSortedElement) {
  for (const size_t n : {1, 2, 100, 128, 129, 300, 1000, 40000}) {
    std::vector<float> memory(4 * (n + 64));
    for (const std::vector<float>& x : Rows(n)) {
      std::vector<float> sorted = x;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      ForEachTarget([&] {
        for (const size_t k : {size_t{1}, size_t{2}, n / 3, n / 2, n - 1, n}) {
          if (k < 1 || k > n) continue;
          const auto [value, ties] =
              HWY_DYNAMIC_DISPATCH(Select)(x.data(), nullptr, int64_t(n), double(n), double(k), memory.data());
          ASSERT_EQ(value, sorted[k - 1]) << "n " << n << " k " << k;
          const auto above = std::lower_bound(sorted.begin(), sorted.end(), float(value), std::greater<>());
          ASSERT_EQ(ties, double(k - size_t(above - sorted.begin()))) << "n " << n << " k " << k;
        }
      });
    }
  }
}

TEST(SelectThreshold, MassIsThatOfTheSortedPrefix) {
  for (const size_t n : {1, 100, 129, 5000, 40000}) {
    std::vector<float> memory(4 * (n + 64));
    for (const std::vector<float>& x : Rows(n)) {
      const float max = *std::max_element(x.begin(), x.end());
      std::vector<float> w(n);
      std::transform(x.begin(), x.end(), w.begin(), [&](float v) { return std::exp(v - max); });
      const double total = std::accumulate(w.begin(), w.end(), 0.0);
      ForEachTarget([&] {
        for (const double p : {1e-9, 0.1, 0.5, 0.9, 0.999}) {
          const auto [value, ties] =
              HWY_DYNAMIC_DISPATCH(Select)(x.data(), w.data(), int64_t(n), total, p * total, memory.data());
          double above = 0, equal = 0, below = 0;
          for (size_t i = 0; i < n; ++i) (x[i] > value ? above : x[i] == value ? equal : below) += w[i];
          ASSERT_LT(above, p * total * (1 + 1e-6)) << "n " << n << " p " << p;
          ASSERT_GE(above + equal, p * total * (1 - 1e-6)) << "n " << n << " p " << p;
          const double each = std::exp(value - max), needed = (p * total - above) / each;
          ASSERT_NEAR(ties, std::max(1.0, std::ceil(needed)), 1 + 1e-5 * needed) << "n " << n << " p " << p;
        }
      });
    }
  }
}

}  // namespace
}  // namespace lz
#endif  // HWY_ONCE
