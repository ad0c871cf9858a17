// What fills of cases promise (tests/conformance/README.md).
#include "verify/fill.h"

#include <gtest/gtest.h>

#include <set>

#include "core/view.h"

namespace lz::verify {
namespace {

TEST(Fills, DistinctIntegersDifferWithinARow) {
  for (const double hi : {3.0, 8.0, 50.0}) {  // fewer than a row needs, as many, more
    OwnedTensor tensor = OwnedTensor::RowMajor(DType::kI32, {40, 6});
    Fill({.distribution = Distribution::kDistinct, .lo = 2, .hi = hi}, 7, &tensor);
    const lz_tensor t = tensor.tensor();
    const View view(t);
    std::set<int64_t> all;
    for (int64_t row = 0; row < 40; ++row) {
      std::set<int64_t> own;
      for (int64_t i = 0; i < 6; ++i) own.insert(view.GetInt({row, i}));
      EXPECT_EQ(own.size(), 6u) << row;
      all.merge(own);
    }
    EXPECT_EQ(*all.begin(), 2);
    EXPECT_EQ(*all.rbegin(), hi == 50 ? 49 : 7);
  }
}

}  // namespace
}  // namespace lz::verify
