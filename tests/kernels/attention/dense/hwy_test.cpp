// Dense SIMD attention against a plain FP64 loop: shapes, layouts, options, hidden NaN, threads.
#include "tests/kernels/attention/harness.h"
#include "tests/kernels/call.h"

#include <cmath>
#include <limits>

#include "kernels/attention/problem.h"
#include "ops/attention/dense.h"

namespace lz::kernels {
extern const KernelFamily kernels_attention_dense_hwy;
}

namespace lz::testing {
namespace {
using namespace lz::ops::attention_dense;
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Case {
  DType type = DType::kF32;
  int64_t b = 1, s_q = 1, s_kv = 1, h_q = 1, h_kv = 1, d_qk = 8, d_v = 8;
  bool bhsd = false, causal = false, sinks = false, slopes = false;
  int mask = 0;  // 1 bool per (b, 1, s_q, s_kv), 2 float per (h_q, s_q, s_kv), 3 bf16 (1, s_kv)
  int64_t window = -1, pad = 0;
  double softcap = 0;
  int threads = 1;
};

struct Arrays {
  Array q, k, v, mask, sinks, slopes, out, lse;
};

Arrays Make(const Case& c, std::mt19937& random) {
  const std::vector<int> order = c.bhsd ? std::vector<int>{0, 2, 1, 3} : std::vector<int>{};
  Arrays x;
  x.q = Array(c.type, {c.b, c.s_q, c.h_q, c.d_qk}, order, c.pad).Fill(random);
  x.k = Array(c.type, {c.b, c.s_kv, c.h_kv, c.d_qk}, order, c.pad).Fill(random);
  x.v = Array(c.type, {c.b, c.s_kv, c.h_kv, c.d_v}, order, c.pad).Fill(random);
  x.out = Array(c.type, {c.b, c.s_q, c.h_q, c.d_v}, order, c.pad);
  x.lse = Array(DType::kF32, {c.b, c.h_q, c.s_q});
  const auto keep = [&](const std::vector<int64_t>&) { return random() % 4 ? 1.0 : 0.0; };
  const auto bias = [&](const std::vector<int64_t>&) { return random() % 4 ? double(random() % 7) / 4 - 1 : -kInf; };
  if (c.mask == 1) x.mask = Array(DType::kBool, {c.b, 1, c.s_q, c.s_kv}).Each(keep);
  if (c.mask == 2) x.mask = Array(DType::kF32, {c.h_q, c.s_q, c.s_kv}).Each(bias);
  if (c.mask == 3) x.mask = Array(DType::kBF16, {1, c.s_kv}).Each(bias);
  if (c.sinks) x.sinks = Array(c.type, {c.h_q}).Fill(random);
  if (c.slopes) x.slopes = Array(DType::kF32, {c.h_q}).Each([](auto& i) { return std::exp2(-double(i[0] + 1)); });
  return x;
}

double MaskAt(const Case& c, Arrays& x, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (c.mask == 1) return x.mask.view().Get({b, 0, i, j}) != 0 ? 0 : -kInf;
  if (c.mask == 2) return x.mask.view().Get({h, i, j});
  return c.mask == 3 ? x.mask.view().Get({0, j}) : 0;
}

// Logit of a visible key, -inf for a hidden one.
double Logit(const Case& c, Arrays& x, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t at = i + c.s_kv - c.s_q;
  if (c.causal && j > at) return -kInf;
  if (c.window >= 0 && (j > at || j <= at - c.window)) return -kInf;
  const double mask = MaskAt(c, x, b, h, i, j);
  if (mask == -kInf) return -kInf;
  const View q = x.q.view(), k = x.k.view();
  double z = 0;
  for (int64_t e = 0; e < c.d_qk; ++e) z += q.Get({b, i, h, e}) * k.Get({b, j, h / (c.h_q / c.h_kv), e});
  z /= std::sqrt(std::max(1.0, double(c.d_qk)));
  if (c.softcap > 0) z = c.softcap * std::tanh(z / c.softcap);
  if (c.slopes) z -= x.slopes.view().Get({h}) * std::abs(double(at - j));
  return z + mask;
}

struct Expected {
  std::vector<double> out;
  double lse;
};
Expected Reference(const Case& c, Arrays& x, int64_t b, int64_t h, int64_t i) {
  std::vector<double> z;
  double m = -kInf, l = 0;
  for (int64_t j = 0; j < c.s_kv; ++j) z.push_back(Logit(c, x, b, h, i, j)), m = std::max(m, z.back());
  Expected e = {.out = std::vector<double>(size_t(c.d_v), 0.0), .lse = -kInf};
  for (int64_t j = 0; j < c.s_kv; ++j) {
    if (z[size_t(j)] == -kInf) continue;
    const double w = std::exp(z[size_t(j)] - m);
    l += w;
    for (int64_t d = 0; d < c.d_v; ++d) e.out[size_t(d)] += w * x.v.view().Get({b, j, h / (c.h_q / c.h_kv), d});
  }
  if (l == 0) return e;
  e.lse = m + std::log(l);
  if (c.sinks) l += std::exp(x.sinks.view().Get({h}) - m);
  for (double& v : e.out) v /= l;
  return e;
}

int32_t RunKernel(const Case& c, Arrays& x) {
  std::vector<lz_scalar> scalars(6, kAbsent);
  scalars[kCausal] = Whole(c.causal);
  scalars[kScale] = Real(1 / std::sqrt(std::max(1.0, double(c.d_qk))));
  scalars[kDropoutP] = Real(0);
  scalars[kWindow] = c.window >= 0 ? Whole(c.window) : lz_scalar{.value = {.i = -1}, .given = 0};
  scalars[kSoftcap] = c.softcap > 0 ? Real(c.softcap) : kAbsent;
  scalars[kReturnLse] = Whole(1);
  return Call(kernels::kernels_attention_dense_hwy, "hwy.attention.gqa.prefill",
              {&x.q, &x.k, &x.v, &x.mask, &x.sinks, &x.slopes, &x.out, &x.lse}, scalars,
              {c.b, c.s_q, c.h_q, c.d_qk, c.s_kv, c.h_kv, c.d_v}, c.threads);
}

std::vector<Expected> References(const Case& c, Arrays& x) {  // by b, i, h
  std::vector<Expected> all;
  for (int64_t b = 0; b < c.b; ++b) {
    for (int64_t i = 0; i < c.s_q; ++i) {
      for (int64_t h = 0; h < c.h_q; ++h) all.push_back(Reference(c, x, b, h, i));
    }
  }
  return all;
}

void Compare(const Case& c, Arrays& x, const std::vector<Expected>& expected) {
  const double tolerance = testing_call::ToleranceOf(kContract.tolerance, c.type);
  const View out = x.out.view(), lse = x.lse.view();
  size_t n = 0;
  for (int64_t b = 0; b < c.b; ++b) {
    for (int64_t i = 0; i < c.s_q; ++i) {
      for (int64_t h = 0; h < c.h_q; ++h, ++n) {
        const Expected& e = expected[n];
        if (std::isinf(e.lse)) {
          ASSERT_EQ(lse.Get({b, h, i}), e.lse);
        } else {
          ASSERT_NEAR(lse.Get({b, h, i}), e.lse, 4e-6 * std::max(1.0, std::abs(e.lse)) + 1e-6);
        }
        for (int64_t d = 0; d < c.d_v; ++d) {
          const double want = e.out[size_t(d)];
          ASSERT_NEAR(out.Get({b, i, h, d}), want, tolerance * (1 + std::abs(want)))
              << "b " << b << " i " << i << " h " << h << " d " << d;
        }
      }
    }
  }
}

// On every instruction set.
void RunAndCompare(const Case& c, Arrays& x) {
  const std::vector<Expected> expected = References(c, x);
  testing_call::ForEachTarget([&] {
    x.out.Each([](auto&) { return double(NAN); });
    x.lse.Each([](auto&) { return double(NAN); });
    ASSERT_EQ(RunKernel(c, x), 0);
    Compare(c, x, expected);
  });
}

void Check(const Case& c, uint32_t seed = 1) {
  SCOPED_TRACE(::testing::Message() << Info(c.type).name << " b" << c.b << " q" << c.s_q << " kv" << c.s_kv << " h"
                                    << c.h_q << "/" << c.h_kv << " d" << c.d_qk << "/" << c.d_v << " bhsd" << c.bhsd
                                    << " causal" << c.causal << " mask" << c.mask << " window" << c.window << " cap"
                                    << c.softcap << " sinks" << c.sinks << " slopes" << c.slopes);
  std::mt19937 random(seed);
  Arrays x = Make(c, random);
  RunAndCompare(c, x);
}

using testing_call::kTestTypes;

TEST(DenseAttention, DecodeShapes) {
  for (DType type : kTestTypes) {
    for (int64_t d : {1, 3, 7, 16, 31, 64, 80, 96, 128, 256, 512}) {
      for (int64_t group : {1, 2, 3, 4, 5, 8, 11}) {
        Check({.type = type, .s_kv = 67, .h_q = 2 * group, .h_kv = 2, .d_qk = d, .d_v = d, .bhsd = group % 2 == 0});
      }
    }
  }
}

TEST(DenseAttention, Lengths) {
  for (DType type : kTestTypes) {
    for (int64_t s : {0, 1, 2, 15, 16, 17, 63, 64, 65, 129, 1025, 3000}) {
      Check({.type = type, .b = 2, .s_kv = s, .h_q = 3, .h_kv = 1, .d_qk = 64, .d_v = 40, .threads = 3});
    }
  }
}

TEST(DenseAttention, Prefill) {
  for (DType type : kTestTypes) {
    for (int64_t s : {2, 5, 16, 33, 70, 150}) {
      for (bool causal : {false, true}) {
        Check({.type = type, .s_q = s, .s_kv = s, .h_q = 6, .h_kv = 2, .d_qk = 64, .d_v = 64, .causal = causal});
        Check({.type = type, .s_q = s, .s_kv = s + 37, .h_q = 2, .h_kv = 2, .d_qk = 33, .d_v = 20, .causal = causal});
        Check({.type = type, .s_q = s + 9, .s_kv = s, .h_q = 2, .h_kv = 1, .d_qk = 24, .d_v = 72, .causal = causal});
      }
    }
  }
}

attention::Plan PlanOf(const Case& c, int threads) {
  const lz_parallel parallel = {.num_threads = threads};
  attention::Problem p = {
      .dtype = c.type, .cache = c.type, .b = c.b, .s_q = c.s_q, .s_kv = c.s_kv, .h_q = c.h_q, .h_kv = c.h_kv};
  p.d_qk = c.d_qk, p.d_v = c.d_v, p.group = c.h_q / c.h_kv;
  p.k.head = c.bhsd ? c.s_kv * (c.d_qk + c.pad) : c.d_qk + c.pad;
  p.v.head = c.bhsd ? c.s_kv * (c.d_v + c.pad) : c.d_v + c.pad;
  return MakePlan(p, &parallel);
}

// Decode calls with so much work that an item takes several KV heads together.
TEST(DenseAttention, HeadsSideBySide) {
  std::mt19937 random(11);
  const auto pick = [&](std::initializer_list<int64_t> values) { return values.begin()[random() % values.size()]; };
  int side_by_side = 0;
  for (int n = 0; n < 60; ++n) {
    Case c = {.type = kTestTypes[n % 3], .b = pick({1, 4, 8}), .h_kv = pick({2, 3, 6, 8, 10})};
    c.s_kv = c.b == 1 ? pick({2000, 4100}) : c.b == 4 ? pick({550, 1030}) : pick({1, 9, 100, 300});
    c.h_q = c.h_kv * pick({1, 2, 4, 5, 7});
    c.d_qk = pick({8, 33, 64});
    c.d_v = pick({8, 24, 65});
    c.mask = int(pick({0, 0, 1, 2, 3}));
    c.window = pick({-1, -1, 1, 70});
    c.softcap = double(pick({0, 0, 30}));
    c.sinks = random() % 2;
    c.slopes = random() % 3 == 0;
    c.pad = pick({0, 3});
    c.threads = int(pick({1, 4}));
    side_by_side += PlanOf(c, c.threads).heads > 1;
    Check(c, uint32_t(n));
  }
  EXPECT_GT(side_by_side, 30);
  const Case most = {.b = 4, .s_kv = 40, .h_q = 192, .h_kv = 8, .d_qk = 16, .d_v = 8};  // 24 rows to a head
  EXPECT_EQ(PlanOf(most, 1).heads, 8);
  Check(most);
}

// Enough items for every thread; one stretch of memory to an item where that leaves enough.
TEST(DenseAttention, HeadsOfAnItem) {
  Case c = {.s_kv = 4096, .h_q = 32, .h_kv = 8, .d_qk = 64, .d_v = 64};
  EXPECT_EQ(PlanOf(c, 1).heads, 8);
  EXPECT_EQ(PlanOf(c, 2).heads, 8);
  EXPECT_EQ(PlanOf(c, 8).heads, 4);
  EXPECT_EQ(PlanOf(c, 64).heads, 1);
  EXPECT_EQ(PlanOf(c, 64).splits, PlanOf(c, 2).splits);
  EXPECT_EQ(PlanOf(c, 64).step, PlanOf(c, 2).step);
  c.s_kv = 1100;
  EXPECT_EQ(PlanOf(c, 2).splits, 4) << "parts of 256 keys and more";
  EXPECT_EQ(PlanOf(c, 2).heads, 8);
  c.s_kv = 4096;
  c.bhsd = true;
  EXPECT_EQ(PlanOf(c, 2).heads, 1);
  c = {.s_kv = 300, .h_q = 32, .h_kv = 8, .d_qk = 64, .d_v = 64};
  EXPECT_EQ(PlanOf(c, 1).heads, 1) << "one step of every head";
  c = {.s_q = 2, .s_kv = 4096, .h_q = 8, .h_kv = 8, .d_qk = 64, .d_v = 64};
  EXPECT_EQ(PlanOf(c, 2).heads, 1) << "no decode call";
}

// Several steps of keys, and parts that are merged.
TEST(DenseAttention, ManyRowsOverManyKeys) {
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t s_kv : {127, 129, 300, 1500}) {
      Check({.type = type, .s_q = 40, .s_kv = s_kv, .h_q = 2, .h_kv = 1, .d_qk = 33, .d_v = 20, .threads = 3});
      Check({.type = type, .s_q = 9, .s_kv = s_kv, .h_q = 9, .h_kv = 3, .d_qk = 100, .d_v = 72, .causal = true});
      Check(
          {.type = type, .s_q = 30, .s_kv = s_kv, .h_q = 1, .h_kv = 1, .d_qk = 64, .d_v = 64, .mask = 1, .window = 70});
    }
  }
}

TEST(DenseAttention, RandomOptions) {
  std::mt19937 random(7);
  const auto pick = [&](std::initializer_list<int64_t> values) { return values.begin()[random() % values.size()]; };
  for (int n = 0; n < 400; ++n) {
    Case c = {.type = kTestTypes[n % 3],
              .b = pick({1, 2}),
              .s_q = pick({1, 1, 2, 7, 20, 45}),
              .s_kv = pick({1, 30, 64, 90, 200})};
    c.h_kv = pick({1, 2, 3});
    c.h_q = c.h_kv * pick({1, 2, 3, 4, 9});
    c.d_qk = pick({5, 16, 32, 48, 64, 100});
    c.d_v = pick({4, 16, 33, 64, 128});
    c.bhsd = random() % 2;
    c.mask = int(pick({0, 0, 1, 2, 3}));
    c.causal = c.mask == 0 && random() % 2;
    c.window = pick({-1, -1, 1, 5, 70});
    c.softcap = double(pick({0, 0, 2, 30}));
    c.sinks = random() % 2;
    c.slopes = random() % 3 == 0;
    c.pad = pick({0, 3});
    c.threads = int(pick({1, 4}));
    Check(c, uint32_t(n));
  }
}

TEST(DenseAttention, HiddenNaNReachesNothing) {
  for (DType type : kTestTypes) {
    for (int64_t s_q : {1, 3, 40}) {
      Case c = {.type = type, .s_q = s_q, .s_kv = 90, .h_q = 4, .h_kv = 2, .d_qk = 16, .d_v = 24, .mask = 1};
      std::mt19937 random(3);
      Arrays x = Make(c, random);
      x.mask.Each([](auto& i) { return (i[3] + i[2]) % 3 && i[3] != 11 && i[3] != 71 ? 1.0 : 0.0; });
      for (int64_t e = 0; e < 16; ++e) x.k.view().Set({0, 11, 1, e}, NAN);
      x.v.view().Set({0, 71, 0, 5}, NAN);
      x.v.view().Set({0, 11, 1, 6}, kInf);
      RunAndCompare(c, x);
    }
    Case steps = {.type = type, .s_q = 40, .s_kv = 300, .h_q = 4, .h_kv = 2, .d_qk = 16, .d_v = 24, .mask = 1};
    std::mt19937 values(3);
    Arrays z = Make(steps, values);
    z.mask.Each([](auto& i) { return i[3] != 11 && i[3] != 271 ? 1.0 : 0.0; });
    z.k.view().Set({0, 11, 1, 0}, NAN);
    z.v.view().Set({0, 271, 1, 5}, kInf);
    RunAndCompare(steps, z);
    Case side = {.type = type, .b = 8, .s_kv = 300, .h_q = 9, .h_kv = 3, .d_qk = 64, .d_v = 64, .mask = 1};
    std::mt19937 numbers(3);
    Arrays y = Make(side, numbers);
    y.mask.Each([](auto& i) { return i[3] != 11 && i[3] != 271 ? 1.0 : 0.0; });
    y.k.view().Set({2, 11, 1, 0}, NAN);
    y.v.view().Set({2, 271, 1, 5}, NAN);
    y.v.view().Set({5, 11, 0, 6}, kInf);
    RunAndCompare(side, y);
    Case c = {.type = type, .s_q = 50, .s_kv = 50, .h_q = 3, .h_kv = 1, .d_qk = 16, .d_v = 24, .causal = true};
    std::mt19937 random(3);
    Arrays x = Make(c, random);
    x.v.view().Set({0, 20, 0, 5}, NAN);
    x.k.view().Set({0, 30, 0, 2}, NAN);
    ASSERT_EQ(RunKernel(c, x), 0);
    for (int64_t i = 0; i < 50; ++i) {
      for (int64_t h = 0; h < 3; ++h) {
        EXPECT_EQ(std::isnan(x.out.view().Get({0, i, h, 5})), i >= 20);
        EXPECT_EQ(std::isnan(x.out.view().Get({0, i, h, 6})), i >= 30);
        EXPECT_EQ(std::isnan(x.lse.view().Get({0, h, i})), i >= 30);
      }
    }
  }
}

TEST(DenseAttention, VisibleNaNAndInfinity) {
  for (DType type : kTestTypes) {
    for (int64_t s_kv : {40, 1500}) {
      for (double bad : {double(NAN), kInf}) {
        Case c = {.type = type, .s_kv = s_kv, .h_q = 2, .h_kv = 2, .d_qk = 16, .d_v = 24};
        std::mt19937 random(3);
        Arrays x = Make(c, random);
        x.q.Each([](auto&) { return 1.0; });
        x.k.view().Set({0, 7, 0, 3}, bad);
        x.v.view().Set({0, 9, 1, 4}, NAN);
        ASSERT_EQ(RunKernel(c, x), 0);
        for (int64_t d = 0; d < 24; ++d) {
          EXPECT_TRUE(std::isnan(x.out.view().Get({0, 0, 0, d})));
          EXPECT_EQ(std::isnan(x.out.view().Get({0, 0, 1, d})), d == 4);
        }
      }
    }
  }
}

TEST(DenseAttention, FullyMaskedRowsAreZeroWithASink) {
  Case c = {.s_q = 3, .s_kv = 20, .h_q = 2, .h_kv = 1, .d_qk = 16, .d_v = 16, .sinks = true, .mask = 1};
  std::mt19937 random(3);
  Arrays x = Make(c, random);
  x.mask.Each([](auto& i) { return i[2] == 1 ? 0.0 : 1.0; });
  RunAndCompare(c, x);
  EXPECT_EQ(x.out.view().Get({0, 1, 0, 3}), 0);
  EXPECT_EQ(x.lse.view().Get({0, 1, 1}), -kInf);
}

TEST(DenseAttention, ResultDoesNotDependOnThreads) {
  for (DType type : kTestTypes) {
    Case c = {.type = type, .s_kv = 4100, .h_q = 16, .h_kv = 8, .d_qk = 64, .d_v = 64};
    std::mt19937 random(5);
    Arrays x = Make(c, random);
    const size_t size = 16 * 64 * size_t(ByteSize(type));
    const uint8_t* out = x.out.view().data<uint8_t>();
    std::vector<uint8_t> one;
    std::vector<int64_t> heads;
    for (int threads : {1, 5, 10}) {
      c.threads = threads;
      x.out.Each([](auto&) { return 0.0; });
      ASSERT_EQ(RunKernel(c, x), 0);
      if (one.empty()) one.assign(out, out + size);
      EXPECT_EQ(std::memcmp(one.data(), out, size), 0) << threads << " threads";
      heads.push_back(PlanOf(c, threads).heads);
    }
    EXPECT_EQ(heads, (std::vector<int64_t>{8, 4, 2}));
  }
}

TEST(DenseAttention, EmptyTensors) {
  Check({.b = 0, .s_kv = 5, .h_q = 2, .h_kv = 1});
  Check({.b = 1, .s_kv = 5, .h_q = 2, .h_kv = 1, .d_qk = 0, .d_v = 4});
  Check({.b = 1, .s_q = 4, .s_kv = 5, .h_q = 6, .h_kv = 1, .d_qk = 8, .d_v = 0});
}

}  // namespace
}  // namespace lz::testing
