// hwy.kv.append_paged against the reference, bit for bit: every bf16, and floats at and beside the middle of two codes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "ops/kv/append_paged.h"
#include "tests/kernels/attention/harness.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_kv_append_paged_hwy, ops_kv_append_paged_ref;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

constexpr DType kCaches[] = {DType::kI8, DType::kF8E4M3, DType::kF8E5M2};
constexpr int64_t kSize = 16, kHeads = 2;

// Rows `key` into a cache whose heads are stored in `units`, by both kernels.
void ExpectSame(Array& key, DType cache_type, const std::vector<double>& units, const std::vector<int>& order) {
  const int64_t n = key.view().size(0), d = key.view().size(2), blocks = n / kSize + 1;
  Array slots = Array(DType::kI32, {n}).Each([&](const std::vector<int64_t>& i) {
    return i[0] % 7 == 3 ? -1.0 : double((i[0] * 5) % (blocks * kSize));  // blocks * kSize is no multiple of 5
  });
  Array scale = Array(DType::kF32, {int64_t(units.size())}).Each([&](auto& i) { return units[size_t(i[0])]; });
  const auto run = [&](KernelFamily family, std::string_view id, int threads) {
    Array keys(cache_type, {blocks, kSize, kHeads, d}, order), values(cache_type, {blocks, kSize, kHeads, d}, order);
    EXPECT_EQ(Call(family, id, {&keys, &values, &key, &key, &slots, &scale, &scale}, {},
                   {blocks, kSize, kHeads, d, d, n}, threads),
              0);
    std::vector<uint8_t> bytes;
    for (Array* cache : {&keys, &values}) {
      const auto* data = cache->view().data<uint8_t>();
      bytes.insert(bytes.end(), data, data + cache->view().numel());
    }
    return bytes;
  };
  const auto want = run(kernels::ops_kv_append_paged_ref, "ref.kv.append_paged", 1);
  testing_call::ForEachTarget(
      [&] { EXPECT_EQ(run(kernels::kernels_kv_append_paged_hwy, "hwy.kv.append_paged", 2), want); });
}

TEST(HwyKvAppendPaged, EveryBF16) {
  Array key(DType::kBF16, {256, kHeads, 128});
  auto* codes = key.view().data<uint16_t>();
  for (int64_t i = 0; i < 65536; ++i) codes[i] = uint16_t(i);
  for (DType cache : kCaches) {
    ExpectSame(key, cache, {1}, {});
    ExpectSame(key, cache, {0.3, -7e-5}, {0, 2, 1, 3});
  }
}

// Every code of a cache and its neighbour, their middle, and the floats beside these.
TEST(HwyKvAppendPaged, Middles) {
  for (DType cache : kCaches) {
    Array all(cache, {256});
    for (int64_t i = 0; i < 256; ++i) all.view().data<uint8_t>()[i] = uint8_t(i);
    Array key(DType::kF32, {128, kHeads, 7});
    key.Each([&](const std::vector<int64_t>& i) {
      const int64_t code = i[0] * kHeads + i[1];
      const float a = float(all.view().Get({code})), b = float(all.view().Get({(code + 1) % 256})), m = (a + b) / 2;
      const float inf = std::numeric_limits<float>::infinity();
      const float seen[] = {a, m, std::nextafter(m, inf), std::nextafter(m, -inf), std::nextafter(a, 0.0f), 2 * a, -m};
      return double(seen[i[2]]);
    });
    ExpectSame(key, cache, {1}, {});
  }
}

TEST(HwyKvAppendPaged, EveryTypeOfRows) {
  std::mt19937 random(1);
  for (DType type : testing_call::kTestTypes) {
    for (int64_t d : {0, 1, 15, 33, 80}) {
      Array key = Array(type, {40, kHeads, d}, {}, 3).Fill(random, 3);
      for (DType cache : kCaches) ExpectSame(key, cache, {0.02, 0.01}, {});
    }
  }
}

TEST(HwyKvAppendPaged, RefusesASlotBeyondTheCache) {
  Array keys(DType::kI8, {2, 4, 1, 8}), key = Array(DType::kF32, {2, 1, 8}).Each([](auto&) { return 1; });
  Array slots = Array(DType::kI32, {2}).Each([](auto& i) { return i[0] == 0 ? 1 : 8; });
  Array scale = Array(DType::kF32, {1}).Each([](auto&) { return 1; });
  EXPECT_EQ(Call(kernels::kernels_kv_append_paged_hwy, "hwy.kv.append_paged",
                 {&keys, &keys, &key, &key, &slots, &scale, &scale}, {}, {2, 4, 1, 8, 8, 2}, 1),
            ops::kv::kSlotOutOfRange);
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(keys.view().data<int8_t>()[i], 0x7f);
}

}  // namespace
}  // namespace lz::testing
