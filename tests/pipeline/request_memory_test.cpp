// Which elements lie on each other, against a list of all bytes.
#include "pipeline/request_memory.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace lz {
namespace {

constexpr int64_t kBase = 4096;  // of addresses that nobody reads

struct Tensor {
  Tensor(std::vector<int64_t> sizes, std::vector<int64_t> steps, int64_t at = 0, uint8_t bits = 32)
      : shape(std::move(sizes)), strides(std::move(steps)), bits(bits), at(at) {}
  lz_tensor view() const {
    lz_tensor t{};
    t.data = reinterpret_cast<void*>(kBase);
    t.byte_offset = uint64_t(at);
    t.ndim = int32_t(shape.size());
    t.dtype = {2, bits, 1};
    t.shape = const_cast<int64_t*>(shape.data());
    t.strides = const_cast<int64_t*>(strides.data());
    return t;
  }
  // Each as often as an element has it.
  std::multiset<int64_t> Bytes() const {
    std::multiset<int64_t> bytes;
    std::vector<int64_t> index(shape.size());
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i, place = at;
      for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) place += rest % shape[d] * strides[d] * (bits / 8);
      for (int64_t b = 0; b < bits / 8; ++b) bytes.insert(place + b);
    }
    return bytes;
  }

  std::vector<int64_t> shape, strides;
  uint8_t bits;
  int64_t at;  // bytes
};

void Expect(const Tensor& a, const Tensor& b) {
  const std::multiset<int64_t> of_a = a.Bytes(), of_b = b.Bytes();
  const std::set<int64_t> once(of_a.begin(), of_a.end());
  EXPECT_EQ(RepeatsMemory(a.view()), once.size() < of_a.size());
  const bool shared = std::any_of(of_b.begin(), of_b.end(), [&](int64_t byte) { return once.contains(byte); });
  EXPECT_EQ(SharesMemory(a.view(), b.view()), shared);
}

TEST(RequestMemory, OfNeighboursInOneMemory) {
  const Tensor keys({4, 8, 2}, {32, 2, 1}), values({4, 8, 2}, {32, 2, 1}, 64);  // of [4, 2, 8, 2]
  EXPECT_FALSE(SharesMemory(keys.view(), values.view()));
  EXPECT_FALSE(RepeatsMemory(keys.view()));
  EXPECT_TRUE(SharesMemory(keys.view(), Tensor({4, 8, 2}, {32, 2, 1}, 60).view()));
  EXPECT_TRUE(SharesMemory(keys.view(), Tensor({1}, {1}, 63, 8).view()));
  EXPECT_FALSE(SharesMemory(keys.view(), Tensor({1}, {1}, 64, 8).view()));
}

TEST(RequestMemory, OfOneTensor) {
  EXPECT_TRUE(RepeatsMemory(Tensor({2, 8}, {4, 1}).view()));
  EXPECT_TRUE(RepeatsMemory(Tensor({2, 8}, {0, 1}).view()));
  EXPECT_FALSE(RepeatsMemory(Tensor({1, 8}, {0, 1}).view()));
  EXPECT_FALSE(RepeatsMemory(Tensor({2, 0}, {0, 1}).view()));
  EXPECT_FALSE(RepeatsMemory(Tensor({2, 3}, {3, 2}).view()));
}

TEST(RequestMemory, WhatNoAddressSpaceHoldsIsRefused) {
  const Tensor huge({INT64_MAX / 2, 3}, {INT64_MAX / 2, 1}), one({1}, {1});
  EXPECT_TRUE(SharesMemory(huge.view(), one.view()));
}

TEST(RequestMemory, LikeAListOfBytes) {
  std::mt19937 random(1);
  const auto up_to = [&](int64_t n) { return int64_t(random() % uint64_t(n + 1)); };
  for (int i = 0; i < 20000; ++i) {
    const auto draw = [&] {
      std::vector<int64_t> shape, strides;
      for (int64_t d = up_to(4); d > 0; --d) shape.push_back(up_to(3)), strides.push_back(up_to(12) - 2);
      return Tensor(shape, strides, up_to(40), uint8_t(8 << up_to(2)));
    };
    Expect(draw(), draw());
    if (HasFailure()) FAIL() << "draw " << i;
  }
}

}  // namespace
}  // namespace lz
