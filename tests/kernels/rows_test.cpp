// kernels/rows.h's pairs of vectors against the conversions of single numbers, for every instruction set of this CPU.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/rows_test.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/float_formats.h"
#include "hwy/highway.h"
#include "kernels/rows.h"
#include "tests/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {

// out = T(float(in)) through LoadTwo and StoreTwo.
template <class T>
void CopyByTwo(const std::vector<T>& in, std::vector<T>* out) {
  const hn::ScalableTag<float> d;
  const size_t step = 2 * hn::Lanes(d);
  for (size_t i = 0; i + step <= in.size(); i += step) {
    const auto v = LoadTwo(d, in.data() + i);
    StoreTwo(d, v.a, v.b, out->data() + i);
  }
}
void CopyBF16(const std::vector<uint16_t>& in, std::vector<uint16_t>* out) {
  std::vector<BF16> from(in.size()), to(in.size());
  for (size_t i = 0; i < in.size(); ++i) from[i].bits = in[i];
  CopyByTwo(from, &to);
  for (size_t i = 0; i < in.size(); ++i) (*out)[i] = to[i].bits;
}

// Each element of `in` in both vectors of a pair.
void RoundBF16(const std::vector<float>& in, std::vector<uint16_t>* first, std::vector<uint16_t>* second) {
  const hn::ScalableTag<float> d;
  std::vector<BF16> pair(2 * hn::Lanes(d));
  for (size_t i = 0; i < in.size(); ++i) {
    const auto v = hn::Set(d, in[i]);
    StoreTwo(d, v, hn::Zero(d), pair.data());
    (*first)[i] = pair[0].bits;
    StoreTwo(d, hn::Zero(d), v, pair.data());
    (*second)[i] = pair.back().bits;
  }
}

// f of a row of bf16 as a long function and as any other.
void MapBothWays(const std::vector<uint16_t>& in, std::vector<uint16_t>* as_long, std::vector<uint16_t>* as_any) {
  std::vector<BF16> from(in.size()), to(in.size());
  for (size_t i = 0; i < in.size(); ++i) from[i].bits = in[i];
  const auto f = [](auto d, auto v, auto u) { return hn::MulAdd(v, u, hn::Set(d, 0.5f)); };
  MapRow(to.data(), int64_t(in.size()), f, from.data(), from.data());
  for (size_t i = 0; i < in.size(); ++i) (*as_any)[i] = to[i].bits;
  MapRow<kLongFunction>(from.data(), int64_t(in.size()), f, from.data(), from.data());  // in place
  for (size_t i = 0; i < in.size(); ++i) (*as_long)[i] = from[i].bits;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(CopyBF16);
HWY_EXPORT(RoundBF16);
HWY_EXPORT(MapBothWays);

class RowPairs : public testing::OnEachTarget {};

TEST_P(RowPairs, KeepEveryBF16AndItsPlace) {
  std::vector<uint16_t> in(1 << 16), out(in.size());
  for (size_t i = 0; i < in.size(); ++i) in[i] = FloatToBF16(BF16ToFloat(uint16_t(i)));  // NaN as arithmetic gives it
  HWY_DYNAMIC_DISPATCH(CopyBF16)(in, &out);
  EXPECT_EQ(in, out);
}

TEST_P(RowPairs, RoundToNearestEven) {
  std::vector<float> in;
  for (uint32_t upper = 0; upper < 1 << 16; upper += 7) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>(upper << 16 | lower);
      const bool quiet = (upper & 0x40) != 0;  // what arithmetic gives
      if (!std::isnan(value) || quiet) in.push_back(value);
    }
  }
  std::vector<uint16_t> first(in.size()), second(in.size());
  HWY_DYNAMIC_DISPATCH(RoundBF16)(in, &first, &second);
  for (size_t i = 0; i < in.size(); ++i) {
    const uint16_t want = FloatToBF16(in[i]);
    ASSERT_EQ(first[i], want) << std::hex << std::bit_cast<uint32_t>(in[i]);
    ASSERT_EQ(second[i], want) << std::hex << std::bit_cast<uint32_t>(in[i]);
  }
}

TEST_P(RowPairs, TakeLongFunctionsInChunks) {
  for (const size_t n : {1, 31, 511, 512, 513, 1024, 1600}) {
    std::vector<uint16_t> in(n), as_long(n), as_any(n);
    for (size_t i = 0; i < n; ++i) in[i] = FloatToBF16(0.01f * float(i) - 3.0f);
    HWY_DYNAMIC_DISPATCH(MapBothWays)(in, &as_long, &as_any);
    EXPECT_EQ(as_long, as_any) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RowPairs, testing::AllTargets(), testing::NameOfTarget);

}  // namespace
}  // namespace lz
#endif  // HWY_ONCE
