// hwy.posenc.rope and its reference against FP64 complex rotation: forms, table widths, layouts, ids, aliasing, NaN.
#include "ops/posenc/rope.h"

#include <gtest/gtest.h>

#include <complex>

#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_posenc_rope_hwy;
extern const KernelFamily ops_posenc_rope_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;
using ops::posenc_rope::kContract, ops::posenc_rope::kPositionIds, ops::posenc_rope::kPositionOutOfRange,
    ops::posenc_rope::kRotaryDim;

const KernelSpec& Kernel() { return kernels::kernels_posenc_rope_hwy[0]; }
const KernelSpec& Reference() { return kernels::ops_posenc_rope_ref[0]; }

struct Case {
  int64_t b = 2, s = 3, h = 2, d = 64, r = 64, width = 64;
  bool interleaved = false, inverse = false, batched_tables = false;
  DType type = DType::kF32, table_type = DType::kF32;
};

// Angles are the position's and the pair's alone; a value for each column is the same for both columns of a pair.
struct Call {
  explicit Call(const Case& the_case, std::vector<int> order = {0, 1, 2, 3})
      : c(the_case),
        x(c.type, {c.b, c.s, c.h, c.d}, 3, order),
        cos(c.table_type, TableShape(), 1),
        sin(c.table_type, TableShape(), 2),
        out(c.type, {c.b, c.s, c.h, c.d}, 1, order) {
    x.FillNormal(11);
    std::vector<double> cosines, sines;
    for (int64_t p = 0; p < cos.numel() / std::max<int64_t>(c.width, 1); ++p) {
      for (int64_t w = 0; w < c.width; ++w) {
        const double angle = Angle(p, c.width == c.r ? (c.interleaved ? w / 2 : w % (c.r / 2)) : w);
        cosines.push_back(std::cos(angle));
        sines.push_back(std::sin(angle));
      }
    }
    cos.Set(cosines);
    sin.Set(sines);
  }
  std::vector<int64_t> TableShape() const {
    if (c.batched_tables) return {c.b, c.s, c.width};
    return {c.s, c.width};
  }
  static double Angle(int64_t position, int64_t pair) { return 0.7 * double(position + 1) / double(pair + 1); }

  // `position` maps (b, s) to the tables' row.
  template <class Position>
  std::vector<double> Exact(const Position& position) {
    std::vector<double> v = x.Values();
    const auto cosines = cos.Values(), sines = sin.Values();
    for (int64_t row = 0; row < c.b * c.s * c.h; ++row) {
      const int64_t table = position(row / c.h / c.s, row / c.h % c.s) * c.width;
      for (int64_t i = 0; i < c.r / 2; ++i) {
        const int64_t j = row * c.d + (c.interleaved ? 2 * i : i), k = c.interleaved ? j + 1 : j + c.r / 2;
        const int64_t w = table + (c.width == c.r && c.interleaved ? 2 * i : i);
        const std::complex<double> turn(cosines[size_t(w)], (c.inverse ? -1 : 1) * sines[size_t(w)]);
        const std::complex<double> z = std::complex<double>(v[size_t(j)], v[size_t(k)]) * turn;
        v[size_t(j)] = z.real();
        v[size_t(k)] = z.imag();
      }
    }
    return v;
  }
  std::vector<double> Exact() {
    return Exact([this](int64_t b, int64_t s) { return c.batched_tables ? b * c.s + s : s; });
  }
  int32_t Launch(const KernelSpec& kernel, Array* ids = nullptr, Array* to = nullptr) {
    return testing_call::Launch(kernel, {&x, &cos, &sin, ids, to ? to : &out},
                                {Scalar(c.interleaved), Scalar(c.inverse), Scalar(c.r)}, {c.b, c.s, c.h, c.d});
  }
  void Check(const KernelSpec& kernel) {
    SCOPED_TRACE(std::string(kernel.id) + " d " + std::to_string(c.d) + " r " + std::to_string(c.r) + " w " +
                 std::to_string(c.width) + (c.interleaved ? " interleaved " : " ") + std::string(Info(c.type).name) +
                 " " + std::string(Info(c.table_type).name));
    ASSERT_EQ(Launch(kernel), 0);
    ExpectClose(out.Values(), Exact(), ToleranceOf(kContract.tolerance, c.type));
    EXPECT_TRUE(out.PaddingUntouched());
  }

  Case c;
  Array x, cos, sin, out;
};

void CheckForms(DType type, DType table_type) {
  for (const auto& [d, r] : {std::pair{64, 64}, {128, 32}, {10, 10}, {34, 34}, {70, 66}, {2, 2}, {96, 48}, {8, 0}}) {
    for (const int64_t width : {r, r / 2}) {
      for (const bool interleaved : {false, true}) {
        for (const bool inverse : {false, true}) {
          Call call({.d = d,
                     .r = r,
                     .width = width,
                     .interleaved = interleaved,
                     .inverse = inverse,
                     .batched_tables = inverse,
                     .type = type,
                     .table_type = table_type});
          call.Check(Kernel());
          call.Check(Reference());
        }
      }
    }
  }
}

TEST(HwyRope, AgreesWithFp64InEveryFormAndWidth) {
  ForEachTarget([] {
    for (const DType type : kTestTypes) {
      for (const DType table_type : kTestTypes) CheckForms(type, table_type);
    }
  });
}

TEST(HwyRope, TakesAnyOrderOfTheLeadingAxes) {
  for (const auto& order : {std::vector{0, 2, 1, 3}, {2, 1, 0, 3}, {1, 0, 2, 3}}) {
    Call call({.h = 5, .d = 50, .r = 50, .width = 25}, order);
    call.Check(Kernel());
  }
}

TEST(HwyRope, MayWriteOverItsInput) {
  for (const bool interleaved : {false, true}) {
    for (const DType type : kTestTypes) {
      Call call({.d = 70, .r = 66, .width = 66, .interleaved = interleaved, .type = type});
      const auto want = call.Exact();
      ASSERT_EQ(call.Launch(Kernel(), nullptr, &call.x), 0);
      ExpectClose(call.x.Values(), want, ToleranceOf(kContract.tolerance, type));
    }
  }
}

TEST(HwyRope, InverseUndoesTheRotation) {
  Call call({.type = DType::kF32});
  const auto before = call.x.Values();
  ASSERT_EQ(call.Launch(Kernel(), nullptr, &call.x), 0);
  call.c.inverse = true;
  ASSERT_EQ(call.Launch(Kernel(), nullptr, &call.x), 0);
  ExpectClose(call.x.Values(), before, 1e-6);
}

TEST(HwyRope, ReadsTheTablesByPositionIds) {
  for (const KernelSpec* kernel : {&Kernel(), &Reference()}) {
    for (const DType id_type : {DType::kI32, DType::kI64}) {
      Call call({.b = 2, .s = 3});
      Array shared(id_type, {3}), each(id_type, {2, 3}, 4);
      shared.Set({2, 0, 1});
      each.Set({1, 1, 0, 2, 0, 2});
      ASSERT_EQ(call.Launch(*kernel, &shared), 0);
      ExpectClose(call.out.Values(), call.Exact([](int64_t, int64_t s) { return (s + 2) % 3; }), 1e-5);
      ASSERT_EQ(call.Launch(*kernel, &each), 0);
      constexpr int64_t kIds[] = {1, 1, 0, 2, 0, 2};
      ExpectClose(call.out.Values(), call.Exact([&](int64_t b, int64_t s) { return kIds[b * 3 + s]; }), 1e-5);
    }
  }
}

TEST(HwyRope, RefusesPositionsOutsideTheTables) {
  for (const KernelSpec* kernel : {&Kernel(), &Reference()}) {
    for (const double id : {-1.0, 3.0}) {
      Call call({.b = 2, .s = 3});
      Array ids(DType::kI64, {2, 3});
      ids.Set({0, 1, 2, 0, 1, id});
      EXPECT_EQ(call.Launch(*kernel, &ids), kPositionOutOfRange);
    }
  }
}

TEST(HwyRope, CarriesNaNToItsPairAlone) {
  for (const bool interleaved : {false, true}) {
    Call call({.d = 66, .r = 66, .width = 33, .interleaved = interleaved});
    call.x.SetOne(65, NAN);
    call.Check(Kernel());
  }
}

TEST(HwyRope, TakesZeroSizes) {
  for (const Case& c : {Case{.b = 0}, Case{.s = 0}, Case{.h = 0}, Case{.d = 0, .r = 0, .width = 0}}) {
    Call call(c);
    EXPECT_EQ(call.Launch(Kernel()), 0);
    EXPECT_EQ(call.Launch(Reference()), 0);
  }
}

// Canonicalize: the rotated columns from the tables' width, and what is refused.
struct Tables {
  std::vector<int64_t> cos, sin, ids;
};
Status Canonical(int64_t d, const Tables& tables, lz_scalar* rotary_dim) {
  Array x(DType::kF32, {2, 3, 4, d}), cos(DType::kF32, tables.cos), sin(DType::kF32, tables.sin);
  Array ids(DType::kI64, tables.ids.empty() ? std::vector<int64_t>{1} : tables.ids);
  std::vector<lz_tensor> tensors = {x.tensor(), cos.tensor(), sin.tensor(), ids.tensor()};
  if (tables.ids.empty()) tensors[kPositionIds].ndim = -1;
  lz_scalar scalars[] = {Scalar(false), Scalar(false), *rotary_dim};
  const int64_t axes[] = {2, 3, 4, d};
  BoundArgs args{tensors.data(), scalars, axes};
  Status status = kContract.canonicalize(args);
  *rotary_dim = scalars[kRotaryDim];
  return status;
}
int64_t Resolved(int64_t d, int64_t width, int64_t given = -1) {
  lz_scalar r = given < 0 ? lz_scalar{.value = {.i = 0}, .given = 0} : Scalar(given);
  return Canonical(d, {{3, width}, {3, width}, {}}, &r).ok() ? r.value.i : -1;
}
std::string Refused(const Tables& tables) {
  lz_scalar r = {.value = {.i = 0}, .given = 0};
  const Status status = Canonical(64, tables, &r);
  return status.ok() ? "" : status.parts().field;
}

TEST(RopeContract, DerivesTheRotatedColumnsFromTheTables) {
  EXPECT_EQ(Resolved(64, 64), 64);
  EXPECT_EQ(Resolved(64, 32), 64);
  EXPECT_EQ(Resolved(64, 48), 48);
  EXPECT_EQ(Resolved(64, 16), -1);  // 16 or 32
  EXPECT_EQ(Resolved(64, 16, 16), 16);
  EXPECT_EQ(Resolved(64, 16, 32), 32);
  EXPECT_EQ(Resolved(64, 32, 32), 32);
  EXPECT_EQ(Resolved(64, 16, 64), -1);
  EXPECT_EQ(Resolved(64, 128), -1);
  EXPECT_EQ(Resolved(64, 128, 128), -1);
  EXPECT_EQ(Resolved(64, 33), -1);  // odd
  EXPECT_EQ(Resolved(5, 5), -1);
  EXPECT_EQ(Resolved(5, 4), 4);
}

TEST(RopeContract, RefusesTablesThatDoNotFit) {
  EXPECT_EQ(Refused({{3, 64}, {3, 64}, {}}), "");
  EXPECT_EQ(Refused({{2, 3, 64}, {2, 3, 64}, {}}), "");
  EXPECT_EQ(Refused({{1, 3, 64}, {1, 3, 64}, {}}), "");
  EXPECT_EQ(Refused({{9, 64}, {9, 64}, {3}}), "");
  EXPECT_EQ(Refused({{9, 64}, {9, 64}, {2, 3}}), "");
  EXPECT_EQ(Refused({{1, 64}, {1, 64}, {}}), "cos");
  EXPECT_EQ(Refused({{4, 64}, {4, 64}, {}}), "cos");
  EXPECT_EQ(Refused({{64}, {64}, {}}), "cos");
  EXPECT_EQ(Refused({{3, 3, 64}, {3, 3, 64}, {}}), "cos");
  EXPECT_EQ(Refused({{2, 3, 1, 64}, {2, 3, 1, 64}, {}}), "cos");
  EXPECT_EQ(Refused({{3, 64}, {3, 32}, {}}), "sin");
  EXPECT_EQ(Refused({{3, 64}, {1, 3, 64}, {}}), "sin");
  EXPECT_EQ(Refused({{2, 3, 64}, {2, 3, 64}, {3}}), "cos");
  EXPECT_EQ(Refused({{9, 64}, {9, 64}, {4}}), "position_ids");
  EXPECT_EQ(Refused({{9, 64}, {9, 64}, {3, 3}}), "position_ids");
}

}  // namespace
}  // namespace lz
