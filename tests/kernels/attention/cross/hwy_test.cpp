// hwy.attention.cross.* against the FP64 reference on lengths around the kernel's blocks, any number of threads.
#include "ops/attention/cross.h"

#include "tests/kernels/attention/harness.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_attention_cross_hwy, ops_attention_cross_ref;
}

namespace lz::testing {
namespace {
using namespace lz::ops::attention_cross;

struct Case {
  DType type;
  int64_t b, s_q, s_kv, h_q, h_kv, d;
};

void RunBoth(const Case& c, bool masked) {
  std::mt19937 random(7);
  Array q = Array(c.type, {c.b, c.s_q, c.h_q, c.d}).Fill(random),
        k = Array(c.type, {c.b, c.s_kv, c.h_kv, c.d}).Fill(random);
  Array v = Array(c.type, {c.b, c.s_kv, c.h_kv, c.d}).Fill(random), mask, absent;
  if (masked) mask = Array(DType::kF32, {c.s_q, c.s_kv}).Fill(random);
  const std::vector<lz_scalar> scalars = {Real(1 / std::sqrt(double(c.d))), Real(0), Real(3), Whole(1)};
  const auto run = [&](KernelFamily family, std::string_view id, DType type, int threads) {
    Array out(type, {c.b, c.s_q, c.h_q, c.d}), lse(DType::kF32, {c.b, c.h_q, c.s_q});
    EXPECT_EQ(Call(family, id, {&q, &k, &v, &mask, &absent, &out, &lse}, scalars, {}, threads), 0);
    return std::pair(std::move(out), std::move(lse));
  };
  const std::string suffix = c.s_q == 1 ? "attention.cross.decode" : "attention.cross.prefill";
  auto [want, want_lse] = run(kernels::ops_attention_cross_ref, "ref." + suffix, DType::kF64, 1);
  const double tolerance = testing_call::ToleranceOf(kContract.tolerance, c.type);
  for (int threads : {1, 3}) {
    auto [got, got_lse] = run(kernels::kernels_attention_cross_hwy, "hwy." + suffix, c.type, threads);
    for (int64_t i = 0; i < want.view().numel(); ++i) {
      const double r = want.view().Load(i);
      ASSERT_NEAR(got.view().Load(i), r, tolerance * (1 + std::abs(r))) << "threads " << threads << " element " << i;
    }
    for (int64_t i = 0; i < want_lse.view().numel(); ++i) {
      ASSERT_NEAR(got_lse.view().Load(i), want_lse.view().Load(i), 1e-5) << "lse " << i;
    }
  }
}

TEST(HwyCrossAttention, AgreesWithTheReference) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t s_q : {1, 5, 70}) {
      for (const int64_t s_kv : {1, 63, 129, 600}) {
        for (const bool masked : {false, true}) {
          SCOPED_TRACE(std::to_string(s_q) + " queries, " + std::to_string(s_kv) + " keys");
          RunBoth({type, 2, s_q, s_kv, 4, 2, 40}, masked);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lz::testing
