// A random paged cache with CSR page lists for kernel tests; slots and pages that no sequence uses hold NaN.
#pragma once

#include <algorithm>
#include <numeric>

#include "tests/kernels/attention/harness.h"

namespace lz::testing {

struct PagedCache {
  Array k, v, indptr, indices, last;
};

inline PagedCache MakePagedCache(DType type, const std::vector<int64_t>& lengths, int64_t page_size, int64_t heads,
                                 int64_t d, std::mt19937& random) {
  int64_t listed = 0;
  for (const int64_t n : lengths) listed += (n + page_size - 1) / page_size;
  std::vector<int64_t> pages(size_t(listed + 2));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  PagedCache c;
  const auto nan = [](auto&) { return double(NAN); };
  c.k = Array(type, {listed + 2, page_size, heads, d}).Each(nan);
  c.v = Array(type, {listed + 2, page_size, heads, d}).Each(nan);
  c.indptr = Array(kInts, {int64_t(lengths.size()) + 1}).Each([](auto&) { return 0; });
  c.indices = Array(kInts, {listed});
  c.last = Array(kInts, {int64_t(lengths.size())});
  std::normal_distribution<double> normal;
  int64_t at = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int64_t j = 0; j < lengths[s]; ++j) {
      const int64_t page = pages[size_t(at + j / page_size)];
      for (int64_t x = 0; x < heads * d; ++x) {
        c.k.view().Set({page, j % page_size, x / d, x % d}, normal(random));
        c.v.view().Set({page, j % page_size, x / d, x % d}, normal(random));
      }
    }
    for (const int64_t end = at + (lengths[s] + page_size - 1) / page_size; at < end; ++at) {
      c.indices.view().SetInt({at}, pages[size_t(at)]);
    }
    c.indptr.view().SetInt({int64_t(s) + 1}, at);
    c.last.view().SetInt({int64_t(s)}, lengths[s] == 0 ? 0 : (lengths[s] - 1) % page_size + 1);
  }
  return c;
}

// Every element of `got` lies within `tolerance` of `want`, -inf beside -inf.
inline void ExpectNear(Array& got, Array& want, double tolerance) {
  const View x = got.view(), r = want.view();
  for (int64_t i = 0; i < r.numel(); ++i) {
    const double expected = r.Load(i);
    if (std::isinf(expected)) {
      ASSERT_EQ(x.Load(i), expected) << "element " << i;
    } else {
      ASSERT_NEAR(x.Load(i), expected, tolerance * (1 + std::abs(expected))) << "element " << i;
    }
  }
}

}  // namespace lz::testing
