// hwy.dequantize.gguf: bit for bit the definition on every instruction set, format and output dtype; sizes are checked.
#include "ops/dequantize/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/float_formats.h"
#include "core/kernel.h"
#include "hwy/targets.h"

namespace lz::kernels {
extern const KernelFamily kernels_dequantize_gguf_hwy, ops_dequantize_gguf_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::ops::dequantize_gguf;

const KernelSpec& Kernel() { return kernels::kernels_dequantize_gguf_hwy[0]; }
const KernelSpec& Reference() { return kernels::ops_dequantize_gguf_ref[0]; }

// Two parts of the rows, one after the other.
void RunParts(void*, int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
  const int64_t middle = std::min(end, begin + std::max(grain, (end - begin) / 2));
  body(begin, middle, context);
  if (middle < end) body(middle, end, context);
}
constexpr lz_parallel kTwoParts = {&RunParts, nullptr, 2};

// What `kernel` writes for [n, columns] of `type` from rows that lie `pad` bytes apart.
std::vector<char> Dequantize(const KernelSpec& kernel, std::vector<uint8_t> bytes, int64_t n, int64_t columns,
                             int64_t pad, Format format, DType type) {
  const int64_t row_bytes = columns / kBlockColumns[format] * kBlockBytes[format];
  std::vector<char> out(size_t(n * columns * ByteSize(type)), char(0x5a));
  int64_t shape[] = {n, row_bytes}, strides[] = {row_bytes + pad, 1};
  int64_t out_shape[] = {n, columns}, out_strides[] = {columns, 1};
  const lz_tensor tensors[] = {
      {bytes.data(), {1, 0}, 2, {Info(DType::kU8).dlpack_code, 8, 1}, shape, strides, 0},
      {out.data(), {1, 0}, 2, {Info(type).dlpack_code, Info(type).bits, 1}, out_shape, out_strides, 0}};
  const int64_t choice = type == DType::kF32 ? 0 : type == DType::kBF16 ? 1 : 2;
  lz_scalar scalars[] = {{{columns}, 1}, {{format}, 1}, {{choice}, 1}};
  BoundArgs bound = {tensors, scalars, nullptr};
  EXPECT_TRUE(kContract.canonicalize(bound).ok());
  const lz_kernel_args args = {
      .size = sizeof(lz_kernel_args), .tensors = tensors, .scalars = scalars, .parallel = &kTwoParts};
  EXPECT_EQ(kernel.launch(&args), 0);
  return out;
}
std::vector<float> DequantizeF32(const KernelSpec& kernel, const std::vector<uint8_t>& block, Format format) {
  std::vector<float> values(32);
  std::memcpy(values.data(), Dequantize(kernel, block, 1, 32, 0, format, DType::kF32).data(), 128);
  return values;
}

// Where a block's float16 numbers lie; -1: no second one.
constexpr std::array<std::array<int64_t, 2>, kFormats> kHalves = {
    {{0, -1}, {0, 2}, {0, -1}, {0, 2}, {0, -1}, {0, 2}, {0, 2}, {208, -1}}};

// Random codes under finite scales, subnormal, zero and negative ones among them.
std::vector<uint8_t> RandomBlocks(int64_t count, Format format) {
  std::mt19937 random(6);
  std::vector<uint8_t> bytes(size_t(count * kBlockBytes[format]));
  for (uint8_t& b : bytes) b = uint8_t(random());
  for (int64_t i = 0; i < count; ++i) {
    for (const int64_t half : kHalves[format]) {
      if (half < 0) continue;
      uint8_t* high = &bytes[size_t(i * kBlockBytes[format] + half + 1)];
      if ((*high & 0x7c) == 0x7c) *high ^= 0x40;
      if (i % 5 == 0) *high &= 0x83;  // subnormal
      if (i % 7 == 0) high[0] = high[-1] = 0;
    }
  }
  return bytes;
}

TEST(DequantizeGguf, ABlockByHand) {
  // d = 0.5 (0x3800); byte j of the codes is 0x10 * (15 - j) + j, so value j is j and value j + 16 is 15 - j.
  std::vector<uint8_t> q4_0 = {0x00, 0x38}, q4_1 = {0x00, 0x38, 0x00, 0xbc}, q8_0 = {0x00, 0x38};  // m = -1
  for (int j = 0; j < 16; ++j) {
    q4_0.push_back(uint8_t((15 - j) << 4 | j));
    q4_1.push_back(q4_0.back());
  }
  for (int j = 0; j < 32; ++j) q8_0.push_back(uint8_t(j * 8 - 128));
  for (const KernelSpec* kernel : {&Kernel(), &Reference()}) {
    const std::vector<float> a = DequantizeF32(*kernel, q4_0, kQ4_0), b = DequantizeF32(*kernel, q4_1, kQ4_1);
    const std::vector<float> c = DequantizeF32(*kernel, q8_0, kQ8_0);
    for (int j = 0; j < 32; ++j) {
      const float code = float(j < 16 ? j : 31 - j);
      EXPECT_EQ(a[j], 0.5f * (code - 8)) << kernel->id << j;
      EXPECT_EQ(b[j], 0.5f * code - 1) << kernel->id << j;
      EXPECT_EQ(c[j], 0.5f * float(j * 8 - 128)) << kernel->id << j;
    }
  }
}

TEST(DequantizeGguf, EqualsTheReferenceBitForBit) {
  constexpr std::array<std::array<int64_t, 2>, 6> kSizes = {{{5, 3}, {1, 1}, {3, 16}, {0, 2}, {4, 0}, {700, 2}}};
  for (const Format format : {kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K}) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const auto& [n, blocks] : kSizes) {
        const int64_t columns = blocks * kBlockColumns[format];
        const std::vector<uint8_t> bytes = RandomBlocks(n * blocks + 1, format);
        const std::vector<char> expected = Dequantize(Reference(), bytes, n, columns, 0, format, type);
        for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
          hwy::SetSupportedTargetsForTest(target);
          hwy::GetChosenTarget().DeInit();
          EXPECT_EQ(Dequantize(Kernel(), bytes, n, columns, 0, format, type), expected)
              << hwy::TargetName(target) << " format " << format << " " << Info(type).name << " columns " << columns;
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

TEST(DequantizeGguf, RowsMayLieApart) {
  const int64_t row = 2 * kBlockBytes[kQ4_1], pad = 7;
  const std::vector<uint8_t> blocks = RandomBlocks(6, kQ4_1);
  std::vector<uint8_t> apart;
  for (int64_t r = 0; r < 3; ++r) {
    apart.insert(apart.end(), blocks.begin() + r * row, blocks.begin() + (r + 1) * row);
    apart.insert(apart.end(), size_t(pad), 0xee);
  }
  for (const KernelSpec* kernel : {&Kernel(), &Reference()}) {
    EXPECT_EQ(Dequantize(*kernel, apart, 3, 64, pad, kQ4_1, DType::kF32),
              Dequantize(*kernel, blocks, 3, 64, 0, kQ4_1, DType::kF32));
  }
}

TEST(DequantizeGguf, InfiniteAndNaNScalesStayVisible) {
  for (const uint16_t scale : {0x7c00, 0xfc00, 0x7e00}) {
    std::vector<uint8_t> block(34, 1);
    std::memcpy(block.data(), &scale, 2);
    for (const float v : DequantizeF32(Kernel(), block, kQ8_0)) EXPECT_FALSE(std::isfinite(v));
  }
}

TEST(DequantizeGguf, SizesThatDoNotFitAreRefusedByName) {
  const auto refused = [](int64_t row_bytes, int64_t columns, Format format) -> std::string {
    int64_t shape[] = {1, row_bytes}, strides[] = {row_bytes, 1};
    const lz_tensor data = {nullptr, {1, 0}, 2, {Info(DType::kU8).dlpack_code, 8, 1}, shape, strides, 0};
    lz_scalar scalars[] = {{{columns}, 1}, {{format}, 1}, {{0}, 1}};
    BoundArgs args = {&data, scalars, nullptr};
    const Status s = kContract.canonicalize(args);
    return s.ok() ? "" : s.parts().field;
  };
  EXPECT_EQ(refused(36, 64, kQ4_0), "");
  EXPECT_EQ(refused(36, 64, kQ4_1), "data");
  EXPECT_EQ(refused(34, 32, kQ8_0), "");
  EXPECT_EQ(refused(34, 64, kQ8_0), "data");
  EXPECT_EQ(refused(18, 31, kQ4_0), "columns");
  EXPECT_EQ(refused(18, -32, kQ4_0), "columns");
  EXPECT_EQ(refused(0, 0, kQ4_0), "");
  EXPECT_EQ(refused(144, 256, kQ4_K), "");
  EXPECT_EQ(refused(144, 32, kQ4_K), "columns");
  EXPECT_EQ(refused(176, 256, kQ6_K), "data");
}

}  // namespace
}  // namespace lz
