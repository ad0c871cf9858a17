// kernels/simd_math.h and kernels/simd_math_bf16.h against double, for every instruction set that this CPU has.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/simd_math_test.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "hwy/highway.h"
#include "kernels/simd.h"
#include "kernels/simd_math.h"
#include "kernels/simd_math_bf16.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {

template <class F>
void Map(const F& f, const std::vector<float>& in, std::vector<float>* out) {
  const hn::ScalableTag<float> d;
  out->assign(in.size(), 0.0f);
  for (size_t i = 0; i + hn::Lanes(d) <= in.size(); i += hn::Lanes(d)) {
    hn::StoreU(f(d, hn::LoadU(d, in.data() + i)), d, out->data() + i);
  }
}

// Which function: the order of kFunctions below.
void Apply(int function, const std::vector<float>& in, std::vector<float>* out) {
  switch (function) {
    case 0: return Map([](auto d, auto x) { return Exp(d, x); }, in, out);
    case 1: return Map([](auto d, auto x) { return Sigmoid(d, x); }, in, out);
    case 2: return Map([](auto d, auto x) { return Silu(d, x); }, in, out);
    case 3: return Map([](auto d, auto x) { return Tanh(d, x); }, in, out);
    case 4: return Map([](auto d, auto x) { return Erf(d, x); }, in, out);
    case 5: return Map([](auto d, auto x) { return GeluErf(d, x); }, in, out);
    case 6: return Map([](auto d, auto x) { return GeluTanh(d, x); }, in, out);
    case 7: return Map([](auto d, auto x) { return ExpTo<BF16>(d, x); }, in, out);
    case 8: return Map([](auto d, auto x) { return SigmoidTo<BF16>(d, x); }, in, out);
    case 9: return Map([](auto d, auto x) { return SiluTo<BF16>(d, x); }, in, out);
    case 10: return Map([](auto d, auto x) { return ScaledSiluTo<BF16>(d, x, 1.702f); }, in, out);
    case 11: return Map([](auto d, auto x) { return GeluErfTo<BF16>(d, x); }, in, out);
    default: return Map([](auto d, auto x) { return GeluTanhTo<BF16>(d, x); }, in, out);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Apply);

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

struct Function {
  const char* name;
  double (*exact)(double);
  double relative;     // bound where |exact| > 2e-36 and |x| < 5
  double far;          // bound of the rest: what an error of x^2 in f32 becomes
  double special = 0;  // bound at zeros and where the result is constant; f32 has those exactly
};
double Exp(double x) { return std::exp(x); }
double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Silu(double x) { return x / (1 + std::exp(-x)); }
double ScaledSilu(double x) { return x * Sigmoid(1.702 * x); }
double Tanh(double x) { return std::tanh(x); }
double Erf(double x) { return std::erf(x); }
double GeluErf(double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double GeluTanh(double x) { return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

const Function kFunctions[] = {
    {"Exp", &Exp, 1.9e-7, 1.9e-7},
    {"Sigmoid", &Sigmoid, 4e-7, 4e-7},
    {"Silu", &Silu, 4e-7, 4e-7},
    {"Tanh", &Tanh, 4e-7, 4e-7},
    {"Erf", &Erf, 4e-7, 4e-7},
    {"GeluErf", &GeluErf, 3e-6, 1e-5},
    {"GeluTanh", &GeluTanh, 3e-6, 2e-5},
    {"ExpToBF16", &Exp, 8e-5, 8e-5, 8e-5},
    {"SigmoidToBF16", &Sigmoid, 5e-4, 5e-4, 5e-4},
    {"SiluToBF16", &Silu, 5e-4, 5e-4, 5e-4},
    {"ScaledSiluToBF16", &ScaledSilu, 5e-4, 5e-4, 5e-4},
    {"GeluErfToBF16", &GeluErf, 1e-3, 1e-3, 1e-3},
    {"GeluTanhToBF16", &GeluTanh, 5e-4, 1e-3, 5e-4},
};

std::vector<float> Inputs() {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 4999) {  // every binade, both signs
    x.push_back(std::bit_cast<float>(bits));
    x.push_back(-x.back());
  }
  for (float v = -110; v < 110; v += 0.00131f) x.push_back(v);
  x.resize((x.size() / 64 + 1) * 64, 0.5f);
  return x;
}

class SimdMath : public testing::TestWithParam<int> {
 protected:
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// Runs `body` once for each instruction set.
template <class Body>
void ForEachTarget(Body&& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

TEST_P(SimdMath, StaysWithinItsErrorBoundOverAllBinades) {
  const Function& f = kFunctions[GetParam()];
  const std::vector<float> x = Inputs();
  ForEachTarget([&] {
    std::vector<float> y;
    HWY_DYNAMIC_DISPATCH(Apply)(GetParam(), x, &y);
    double worst[2] = {}, at[2] = {};  // |x| < 5, beyond
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = f.exact(double(x[i]));
      if (std::isnan(exact)) continue;
      if (std::isinf(float(exact))) {
        EXPECT_EQ(y[i], float(exact)) << x[i];
        continue;
      }
      const double error = std::fabs(double(y[i]) - exact);
      if (std::fabs(exact) < 2e-36) {  // where Exp flushes
        EXPECT_LE(error, 2e-36) << x[i];
        continue;
      }
      const int far = std::fabs(x[i]) < 5 ? 0 : 1;
      if (!(error / std::fabs(exact) <= worst[far])) {
        worst[far] = error / std::fabs(exact);
        at[far] = x[i];
      }
    }
    EXPECT_LE(worst[0], f.relative) << f.name << " at " << at[0];
    EXPECT_LE(worst[1], f.far) << f.name << " at " << at[1];
  });
}

TEST_P(SimdMath, TreatsNaNAndInfinityAsTheFormulaDoes) {
  const Function& f = kFunctions[GetParam()];
  const std::vector<float> specials = {
      kInf, -kInf, kNaN, std::bit_cast<float>(0x7fc00001u), std::bit_cast<float>(0xffffffffu), 0.0f, -0.0f, 1e30f};
  ForEachTarget([&] {
    for (const float special : specials) {
      std::vector<float> y;
      HWY_DYNAMIC_DISPATCH(Apply)(GetParam(), std::vector<float>(64, special), &y);
      const float want = float(f.exact(double(special)));
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(y[0])) << special << " gave " << y[0];
      } else {
        EXPECT_TRUE(y[0] == want || std::fabs(y[0] - want) <= f.special * std::fabs(want))
            << special << " gave " << y[0];
        EXPECT_EQ(std::signbit(y[0]), std::signbit(want)) << special;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Functions, SimdMath, testing::Range(0, int(std::size(kFunctions))),
                         [](const auto& info) { return kFunctions[info.param].name; });

}  // namespace
}  // namespace lz
#endif  // HWY_ONCE
