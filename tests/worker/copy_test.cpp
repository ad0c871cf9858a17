#include "worker/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/limits.h"
#include "worker/message.h"

namespace lz::worker {
namespace {

// Random shapes and strides: element by element as a plain loop copies them.
TEST(WorkerCopy, AnyStridesAndItems) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    const int ndim = int(random() % (kMaxRank + 1)), item = 1 << random() % 5;
    std::vector<int64_t> shape(size_t(ndim), 0), strides(shape), dense(shape), axes(shape);
    std::iota(axes.begin(), axes.end(), 0);
    std::shuffle(axes.begin(), axes.end(), random);
    int64_t step = 1 + int64_t(random() % 2), elements = 1;
    for (int64_t axis : axes) {
      shape[size_t(axis)] = int64_t(random() % 4);
      if (ndim < 5) shape[size_t(axis)] += 1;
      strides[size_t(axis)] = random() % 8 == 0 ? 0 : step;
      step *= std::max<int64_t>(shape[size_t(axis)], 1);
      step += int64_t(random() % 3 == 0);
      elements *= shape[size_t(axis)];
    }
    std::string from(size_t((step + 1) * item), '\0'), to(size_t(elements * item + 1), '\7');
    for (char& byte : from) byte = char(random());
    const lz_tensor t{.data = from.data(),
                      .device = {1, 0},
                      .ndim = ndim,
                      .dtype = {1, uint8_t(item < 16 ? item * 8 : 128), 1},
                      .shape = shape.data(),
                      .strides = strides.data(),
                      .byte_offset = 0};
    SetDenseStrides(t, dense.data());
    CopyDense(t, to.data(), dense.data(), {nullptr, nullptr, 1});
    EXPECT_EQ(to.back(), '\7');
    for (int64_t i = 0; i < elements; ++i) {
      int64_t left = i, in = 0, out = 0;
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        in += left % shape[axis] * strides[axis];
        out += left % shape[axis] * dense[axis];
        left /= shape[axis];
      }
      ASSERT_EQ(to.substr(size_t(out * item), size_t(item)), from.substr(size_t(in * item), size_t(item)));
    }
  }
}

TEST(WorkerCopy, SeveralThreadsCopyALargeOne) {
  std::vector<char> from(5 << 20), to(from.size());
  std::iota(from.begin(), from.end(), char(1));
  int64_t shape = int64_t(from.size()), stride = 1;
  const lz_tensor t{.data = from.data(),
                    .device = {1, 0},
                    .ndim = 1,
                    .dtype = {1, 8, 1},
                    .shape = &shape,
                    .strides = &stride,
                    .byte_offset = 0};
  static int parts;
  parts = 0;
  const auto halves = [](void*, int64_t begin, int64_t end, int64_t, lz_parallel_body body, void* context) {
    parts += 2;
    body(begin, end / 2, context);
    body(end / 2, end, context);
  };
  CopyDense(t, to.data(), &stride, {halves, nullptr, 2});
  EXPECT_EQ(parts, 2);
  EXPECT_EQ(to, from);
}

}  // namespace
}  // namespace lz::worker
