// Checks of kernels that compute f(gate) * up: shared by the tests of the gated activations.
#pragma once

#include <gtest/gtest.h>

#include "tests/kernels/call.h"

namespace lz::testing_call {

struct Gated {
  const KernelSpec* kernel;
  double (*exact)(double);
  Tolerance tolerance;
  std::vector<lz_scalar> scalars = {};
};

inline void CheckGated(const Gated& g, Array& gate, Array& up, Array& out) {
  const auto a = gate.Values(), b = up.Values();
  std::vector<double> want(a.size());
  for (size_t i = 0; i < a.size(); ++i) want[i] = g.exact(a[i]) * b[i];
  ASSERT_EQ(Launch(*g.kernel, {&gate, &up, &out}, g.scalars), 0);
  ExpectClose(out.Values(), want, ToleranceOf(g.tolerance, gate.type()));
  EXPECT_TRUE(out.PaddingUntouched());
}

inline void CheckGatedSizesAndDTypes(const Gated& g) {
  ForEachTarget([&] {
    for (const DType type : kTestTypes) {
      for (const int64_t n : {1, 7, 16, 17, 31, 33, 64, 129, 5000}) {
        for (const int64_t pad : {0, 3}) {
          SCOPED_TRACE(std::string(Info(type).name) + " n " + std::to_string(n));
          Array gate(type, {3, n}, pad), up(type, {3, n}), out(type, {3, n}, 2 * pad);
          gate.FillNormal(1, 4);
          up.FillNormal(2);
          CheckGated(g, gate, up, out);
        }
      }
    }
  });
}

inline void CheckGatedStridesAliasingAndNaN(const Gated& g) {
  for (const DType type : kTestTypes) {
    for (const int64_t n : {5, 64, 100}) {
      Array gate(type, {2, 3, n}, 1, {1, 0, 2}), up(type, {2, 3, n}), out(type, {2, 3, n});
      gate.FillNormal(3);
      up.FillNormal(4);
      gate.SetOne(n - 1, NAN);
      up.SetOne(2 * n + 1, NAN);
      gate.SetOne(0, INFINITY);
      CheckGated(g, gate, up, out);
      CheckGated(g, gate, up, up);
      CheckGated(g, gate, out, gate);
    }
    Array none(type, {0, 64}), narrow(type, {4, 0});
    CheckGated(g, none, none, none);
    CheckGated(g, narrow, narrow, narrow);
  }
}

}  // namespace lz::testing_call
