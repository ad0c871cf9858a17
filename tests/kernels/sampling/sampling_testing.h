// What the sampling tests share: owned tensors, a call of one kernel, and the chi-square statistic.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/contract.h"
#include "core/dtype.h"
#include "core/float_formats.h"
#include "core/kernel.h"
#include "core/view.h"

namespace lz::sampling_testing {

// A tensor that owns its memory; contiguous unless strides are given.
struct Owned {
  Owned(DType type, std::vector<int64_t> the_shape, std::vector<int64_t> the_strides = {})
      : shape(std::move(the_shape)), strides(std::move(the_strides)) {
    int64_t count = 1;
    if (strides.empty()) {
      strides.resize(shape.size());
      for (size_t i = shape.size(); i-- > 0; count *= shape[i]) strides[i] = count;
    } else {
      for (size_t i = 0; i < shape.size(); ++i) count += (shape[i] - 1) * strides[i];
    }
    bytes.assign(size_t(std::max<int64_t>(count, 1) * ByteSize(type)), 0);
    tensor = {bytes.data(),
              {1, 0},
              int32_t(shape.size()),
              {Info(type).dlpack_code, Info(type).bits, Info(type).lanes},
              shape.data(),
              strides.data(),
              0};
  }
  Owned(const Owned&) = delete;

  View view() const { return View(tensor); }
  // Row r, element i of values: every row the same when there is one row of values.
  void Fill(const std::vector<double>& values) {
    const View v(tensor);
    const int64_t n = v.size(-1);
    for (int64_t r = 0; r < v.rows(); ++r) {
      for (int64_t i = 0; i < n; ++i) v.SetRow(r, i, values[size_t(r * n + i) % values.size()]);
    }
  }

  std::vector<int64_t> shape, strides;
  std::vector<char> bytes;
  lz_tensor tensor;
};

// Two threads' worth of parts, run one after the other.
inline void RunParts(void*, int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
  for (int64_t i = begin; i < end; i += grain) body(i, std::min(i + grain, end), context);
}
inline constexpr lz_parallel kTwoParts = {&RunParts, nullptr, 2};

inline lz_scalar I(int64_t v) { return {.value = {.i = v}, .given = 1}; }
inline lz_scalar F(double v) { return {.value = {.f = v}, .given = 1}; }

struct Call {
  // nullptr: an absent tensor.
  Call(const std::vector<const Owned*>& owned, std::vector<lz_scalar> the_scalars) : scalars(std::move(the_scalars)) {
    for (const Owned* o : owned) tensors.push_back(o ? o->tensor : lz_tensor{.ndim = -1});
    args = {
        .size = sizeof(lz_kernel_args), .tensors = tensors.data(), .scalars = scalars.data(), .parallel = &kTwoParts};
  }
  int32_t Run(const KernelSpec& kernel) {
    const uint64_t bytes = kernel.workspace ? kernel.workspace(&args) : 0;
    workspace.assign(bytes + 64, char(0xff));  // NaN: nothing may be read before it is written
    const auto address = (reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64;
    args.workspace = reinterpret_cast<void*>(address);
    args.workspace_bytes = bytes;
    return kernel.launch(&args);
  }

  std::vector<lz_tensor> tensors;
  std::vector<lz_scalar> scalars;
  std::vector<char> workspace;
  lz_kernel_args args;
};

// (statistic - degrees) / sqrt(2 degrees): about N(0, 1) if `counts` follow `probabilities`. Cells that expect fewer
// than 10 are pooled into one, so that an excess spread over a far tail is seen too.
inline double ChiSquareSigmas(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  double total = 0, statistic = 0, rest_expected = 0, rest_seen = 0;
  for (const int64_t c : counts) total += double(c);
  int cells = 0;
  const auto add = [&](double seen, double expected) {
    statistic += (seen - expected) * (seen - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * total;
    if (expected >= 10) {
      add(double(counts[i]), expected);
    } else {
      rest_expected += expected;
      rest_seen += double(counts[i]);
    }
  }
  if (rest_expected > 0) add(rest_seen, rest_expected);
  if (rest_expected == 0 && rest_seen > 0) return 1e9;  // something impossible was seen
  const double degrees = std::max(cells - 1, 1);
  return (statistic - degrees) / std::sqrt(2 * degrees);
}

}  // namespace lz::sampling_testing
