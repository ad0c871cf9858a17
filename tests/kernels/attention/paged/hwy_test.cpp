// Paged SIMD attention (CSR lists and block tables) against a plain FP64 loop; unused slots hold NaN.
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/attention/block_table.h"
#include "ops/attention/paged.h"
#include "tests/kernels/attention/harness.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_attention_paged_hwy;
}

namespace lz::testing {
namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Case {
  DType type = DType::kF32;
  std::vector<int64_t> lengths;
  int64_t page_size = 16, h_q = 4, h_kv = 2, d_qk = 16, d_v = 16, window = -1;  // keys, the own position included
  double softcap = 0;
  bool sinks = false, hnd = false;  // hnd: pages in memory as (h_kv, page_size, d)
  int threads = 1;
  DType cache = DType::kUnknown;  // the query's
  bool scales = false;
};

struct Paged {
  Array q, k, v, indptr, indices, last, table, lens, sinks, slopes, k_scale, v_scale, out, lse;
  std::vector<std::vector<int64_t>> pages;  // of each sequence
  int64_t num_pages = 0;
};

Paged Make(const Case& c, std::mt19937& random) {
  Paged x;
  const int64_t b = int64_t(c.lengths.size());
  int64_t listed = 0, widest = 0;
  for (int64_t length : c.lengths) {
    const int64_t n = (length + c.page_size - 1) / c.page_size;
    x.pages.emplace_back(n);
    listed += n;
    widest = std::max(widest, n);
  }
  x.num_pages = listed + 3;
  std::vector<int64_t> free(size_t(x.num_pages));
  for (size_t i = 0; i < free.size(); ++i) free[i] = int64_t(i);
  std::shuffle(free.begin(), free.end(), random);
  const std::vector<int> order = c.hnd ? std::vector<int>{0, 2, 1, 3} : std::vector<int>{};
  const auto nan = [](auto&) { return double(NAN); };
  const DType cache = c.cache == DType::kUnknown ? c.type : c.cache;
  x.k = Array(cache, {x.num_pages, c.page_size, c.h_kv, c.d_qk}, order).Each(nan);
  x.v = Array(cache, {x.num_pages, c.page_size, c.h_kv, c.d_v}, order).Each(nan);
  x.q = Array(c.type, {b, c.h_q, c.d_qk}).Fill(random);  // the block-table form gets the same with an axis of 1
  x.out = Array(c.type, {b, c.h_q, c.d_v});
  x.lse = Array(DType::kF32, {b, c.h_q});
  if (c.sinks) x.sinks = Array(DType::kF32, {c.h_q}).Fill(random);
  if (c.scales) {
    const auto near_a_hundredth = [](const std::vector<int64_t>& h) { return 0.01 * double(h[0] + 1); };
    x.k_scale = Array(DType::kF32, {c.h_kv}).Each(near_a_hundredth);
    x.v_scale = Array(DType::kF32, {c.h_kv}).Each(near_a_hundredth);
  }
  x.indptr = Array(kInts, {b + 1}).Each([](auto&) { return 0; });
  x.indices = Array(kInts, {listed});
  x.last = Array(kInts, {b});
  x.lens = Array(kInts, {b});
  x.table = Array(kInts, {b, widest + 2}).Each([](auto&) { return -1; });
  std::normal_distribution<double> normal(0, cache == DType::kI8 ? 40 : 1);
  int64_t at = 0;
  for (int64_t s = 0; s < b; ++s) {
    const int64_t length = c.lengths[size_t(s)];
    auto& pages = x.pages[size_t(s)];
    for (size_t i = 0; i < pages.size(); ++i) {
      pages[i] = free.back();
      free.pop_back();
      x.indices.view().SetInt({at++}, pages[i]);
      x.table.view().SetInt({s, int64_t(i)}, pages[i]);
    }
    x.indptr.view().SetInt({s + 1}, at);
    x.lens.view().SetInt({s}, length);
    x.last.view().SetInt({s}, length == 0 ? 0 : (length - 1) % c.page_size + 1);
    for (int64_t j = 0; j < length; ++j) {
      const int64_t page = pages[size_t(j / c.page_size)], slot = j % c.page_size;
      for (int64_t h = 0; h < c.h_kv; ++h) {
        for (int64_t d = 0; d < c.d_qk; ++d) x.k.view().Set({page, slot, h, d}, normal(random));
        for (int64_t d = 0; d < c.d_v; ++d) x.v.view().Set({page, slot, h, d}, normal(random));
      }
    }
  }
  return x;
}

int32_t RunCsr(const Case& c, Paged& x) {
  using namespace lz::ops::attention_paged;
  std::vector<lz_scalar> scalars(4, kAbsent);
  scalars[kSmScale] = Real(1 / std::sqrt(double(c.d_qk)));
  scalars[kWindowLeft] = Whole(c.window < 0 ? -1 : c.window - 1);
  if (c.softcap > 0) scalars[kSoftcap] = Real(c.softcap);
  return Call(
      kernels::kernels_attention_paged_hwy, "hwy.attention.gqa.decode.paged",
      {&x.q, &x.k, &x.v, &x.indptr, &x.indices, &x.last, &x.sinks, &x.slopes, &x.k_scale, &x.v_scale, &x.out, &x.lse},
      scalars, {}, c.threads);
}

int32_t RunTable(const Case& c, Paged& x) {
  using namespace lz::ops::attention_block_table;
  std::vector<lz_scalar> scalars(4, kAbsent);
  scalars[kScale] = Real(1 / std::sqrt(double(c.d_qk)));
  scalars[kWindow] = c.window < 0 ? lz_scalar{.value = {.i = -1}, .given = 0} : Whole(c.window);
  if (c.softcap > 0) scalars[kSoftcap] = Real(c.softcap);
  return Call(kernels::kernels_attention_paged_hwy, "hwy.attention.gqa.decode.block_table",
              {&x.q, &x.k, &x.v, &x.table, &x.lens, &x.sinks, &x.slopes, &x.k_scale, &x.v_scale, &x.out, &x.lse},
              scalars, {}, c.threads);
}

void Compare(const Case& c, Paged& x) {
  const double tolerance = testing_call::ToleranceOf(ops::attention_paged::kContract.tolerance, c.type);
  for (int64_t s = 0; s < int64_t(c.lengths.size()); ++s) {
    const int64_t length = c.lengths[size_t(s)], begin = c.window < 0 ? 0 : std::max<int64_t>(0, length - c.window);
    for (int64_t h = 0; h < c.h_q; ++h) {
      const int64_t kv = h / (c.h_q / c.h_kv);
      const double k_unit = c.scales ? x.k_scale.view().Get({kv}) : 1,
                   v_unit = c.scales ? x.v_scale.view().Get({kv}) : 1;
      std::vector<double> z, want(size_t(c.d_v), 0.0);
      double m = -kInf, l = 0;
      for (int64_t j = begin; j < length; ++j) {
        const int64_t page = x.pages[size_t(s)][size_t(j / c.page_size)];
        double dot = 0;
        for (int64_t d = 0; d < c.d_qk; ++d)
          dot += x.q.view().Get({s, h, d}) * x.k.view().Get({page, j % c.page_size, kv, d});
        dot *= k_unit / std::sqrt(double(c.d_qk));
        z.push_back(c.softcap > 0 ? c.softcap * std::tanh(dot / c.softcap) : dot);
        m = std::max(m, z.back());
      }
      for (int64_t j = begin; j < length; ++j) {
        const int64_t page = x.pages[size_t(s)][size_t(j / c.page_size)];
        const double w = std::exp(z[size_t(j - begin)] - m);
        l += w;
        for (int64_t d = 0; d < c.d_v; ++d) want[size_t(d)] += w * x.v.view().Get({page, j % c.page_size, kv, d});
      }
      const double lse = x.lse.view().Get({s, h});
      if (l == 0) {
        ASSERT_EQ(lse, -kInf);
        l = 1;
      } else {
        ASSERT_NEAR(lse, m + std::log(l), 1e-5);
        if (c.sinks) l += std::exp(x.sinks.view().Get({h}) - m);
      }
      for (int64_t d = 0; d < c.d_v; ++d) {
        const double expected = v_unit * want[size_t(d)] / l;
        ASSERT_NEAR(x.out.view().Get({s, h, d}), expected, tolerance * (1 + std::abs(expected)));
      }
    }
  }
}

void Check(const Case& c, uint32_t seed = 1) {
  std::mt19937 random(seed);
  Paged x = Make(c, random);
  testing_call::ForEachTarget([&] {
    ASSERT_EQ(RunCsr(c, x), 0);
    Compare(c, x);
    x.out.Each([](auto&) { return double(NAN); });
    x.lse.Each([](auto&) { return double(NAN); });
    ASSERT_EQ(RunTable(c, x), 0);
    Compare(c, x);
  });
}

TEST(PagedAttention, Lengths) {
  for (DType type : testing_call::kTestTypes) {
    for (int64_t page_size : {1, 5, 16, 128}) {
      Check({.type = type, .lengths = {0, 1, 15, 16, 17, 63, 64, 65, 200, 0}, .page_size = page_size});
    }
  }
}

TEST(PagedAttention, HeadsAndDimensions) {
  for (DType type : testing_call::kTestTypes) {
    for (int64_t group : {1, 3, 4, 8, 12}) {
      for (int64_t d : {9, 64, 80, 128}) {
        Check({.type = type, .lengths = {3, 77}, .h_q = 2 * group, .h_kv = 2, .d_qk = d, .d_v = d + 1, .hnd = d == 64});
      }
    }
  }
}

TEST(PagedAttention, Options) {
  for (int64_t window : {-1, 1, 9, 70, 5000}) {
    for (bool sinks : {false, true}) {
      Check({.lengths = {0, 5, 90, 140}, .window = window, .softcap = 3, .sinks = sinks});
    }
  }
}

TEST(PagedAttention, SplitKeysOnThreads) {
  for (DType type : testing_call::kTestTypes) {
    Check({.type = type, .lengths = {2500}, .h_q = 3, .h_kv = 1, .d_qk = 64, .d_v = 64, .threads = 4});
    Check({.type = type, .lengths = {1900, 0, 7}, .h_q = 4, .h_kv = 2, .d_qk = 64, .d_v = 64, .window = 1000});
  }
}

TEST(PagedAttention, CachesOfAnotherType) {
  for (DType type : testing_call::kTestTypes) {
    for (DType cache : testing_call::kTestTypes) {
      for (int64_t d : {7, 33, 80}) Check({.type = type, .lengths = {3, 77}, .d_qk = d, .d_v = d, .cache = cache});
    }
  }
}

TEST(PagedAttention, Scales) {
  for (DType type : testing_call::kTestTypes) {
    for (DType cache : {DType::kI8, DType::kBF16}) {
      for (int64_t d : {7, 33, 80, 128}) {
        Check({.type = type,
               .lengths = {3, 77},
               .h_q = 6,
               .h_kv = 3,
               .d_qk = d,
               .d_v = d,
               .cache = cache,
               .scales = true});
      }
      Check({.type = type, .lengths = {2500}, .d_qk = 64, .d_v = 64, .threads = 4, .cache = cache, .scales = true});
    }
  }
}

// Sequence i has one key: element e of its row of `codes` is code i + e.
void FillCodes(Array& codes, const Paged& x, int64_t d) {
  auto* bytes = codes.view().data<uint8_t>();
  for (int64_t i = 0; i < 256; ++i) {
    for (int64_t e = 0; e < d; ++e) bytes[x.pages[size_t(i)][0] * d + e] = uint8_t(i + e);
  }
}

TEST(PagedAttention, EveryCodeOfValues) {
  std::mt19937 random(1);
  for (DType type : testing_call::kTestTypes) {
    for (DType cache : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
      const Case c = {.type = type, .lengths = std::vector<int64_t>(256, 1), .page_size = 1, .h_kv = 1, .d_v = 77};
      Paged x = Make(c, random);
      x.k = Array(cache, {x.num_pages, 1, 1, c.d_qk});
      std::memset(x.k.view().data<uint8_t>(), 0, size_t(x.num_pages * c.d_qk));
      x.v = Array(cache, {x.num_pages, 1, 1, c.d_v});
      FillCodes(x.v, x, c.d_v);
      testing_call::ForEachTarget([&] {
        ASSERT_EQ(RunCsr(c, x), 0);
        for (int64_t i = 0; i < 256; ++i) {
          for (int64_t e = 0; e < c.d_v; ++e) {
            const double want = x.v.view().Get({x.pages[size_t(i)][0], 0, 0, e}), got = x.out.view().Get({i, 3, e});
            ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << i << " " << e << " " << got;
          }
        }
      });
    }
  }
}

TEST(PagedAttention, EveryCodeOfKeys) {
  std::mt19937 random(1);
  for (DType cache : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    const Case c = {.lengths = std::vector<int64_t>(256, 1), .page_size = 1, .h_kv = 1, .d_qk = 1};
    Paged x = Make(c, random);
    x.q.Each([](auto&) { return 1; });
    x.k = Array(cache, {x.num_pages, 1, 1, 1});
    FillCodes(x.k, x, 1);
    testing_call::ForEachTarget([&] {
      ASSERT_EQ(RunCsr(c, x), 0);
      for (int64_t i = 0; i < 256; ++i) {
        const double want = x.k.view().Get({x.pages[size_t(i)][0], 0, 0, 0});
        if (std::isfinite(want)) {
          ASSERT_EQ(x.lse.view().Get({i, 0}), want) << i;
        } else if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(x.out.view().Get({i, 0, 0}))) << i;
        }
      }
    });
  }
}

TEST(PagedAttention, RefusesInvalidIndices) {
  const Case c = {.lengths = {40, 20}};
  std::mt19937 random(1);
  const auto broken = [&](auto change) {
    Paged x = Make(c, random);
    x.out.Each([](auto&) { return 7.0; });
    change(x);
    return x;
  };
  Paged x = broken([](Paged& p) { p.indices.view().SetInt({1}, p.num_pages); });
  EXPECT_EQ(RunCsr(c, x), 1);
  EXPECT_EQ(x.out.view().Get({0, 0, 0}), 7);
  x = broken([](Paged& p) { p.indices.view().SetInt({1}, -1); });
  EXPECT_EQ(RunCsr(c, x), 1);
  x = broken([](Paged& p) { p.indptr.view().SetInt({2}, 99); });
  EXPECT_EQ(RunCsr(c, x), 1);
  x = broken([](Paged& p) { p.indptr.view().SetInt({1}, 6); });
  EXPECT_EQ(RunCsr(c, x), 1);
  x = broken([](Paged& p) { p.last.view().SetInt({1}, 17); });
  EXPECT_EQ(RunCsr(c, x), 1);
  x = broken([](Paged& p) { p.table.view().SetInt({1, 1}, -1); });
  EXPECT_EQ(RunTable(c, x), 1);
  x = broken([](Paged& p) { p.lens.view().SetInt({1}, 1000); });
  EXPECT_EQ(RunTable(c, x), 1);
  x = broken([](Paged& p) { p.lens.view().SetInt({1}, -2); });
  EXPECT_EQ(RunTable(c, x), 1);
}

TEST(PagedAttention, PagesOutsideTheWindowAreNotRead) {
  Case c = {.lengths = {40}, .page_size = 8, .window = 4};
  std::mt19937 random(1);
  Paged x = Make(c, random);
  x.indices.view().SetInt({0}, -1);
  x.table.view().SetInt({0, 0}, -1);
  ASSERT_EQ(RunCsr(c, x), 0);
  Compare(c, x);
  ASSERT_EQ(RunTable(c, x), 0);
  Compare(c, x);
}

}  // namespace
}  // namespace lz::testing
