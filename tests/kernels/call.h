// One call of a kernel without the engine: arrays with any strides, random contents, comparison with doubles.
//   Array x(DType::kBF16, {2, 64}), out(DType::kBF16, {2, 64});
//   x.FillNormal(1);
//   ASSERT_EQ(Launch(kernel, {&x, nullptr, &out}, {Scalar(1e-6), Scalar(0.0)}), 0);
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/contract.h"
#include "core/kernel.h"
#include "core/view.h"
#include "hwy/highway.h"
#include "tests/kernels/guarded_bytes.h"

namespace lz::testing_call {

// Owns its memory, every byte of which starts as 0xAA and behind which none can be read. Values are read and set in
// logical row-major order.
class Array {
 public:
  // `pad` elements lie between rows; `order` lists the axes from outermost to innermost in memory (empty: as they are).
  Array(DType type, std::vector<int64_t> shape, int64_t pad = 0, std::vector<int> order = {})
      : type_(type), shape_(std::move(shape)), strides_(shape_.size()) {
    if (order.empty()) {
      order.resize(shape_.size());
      std::iota(order.begin(), order.end(), 0);
    }
    int64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
      strides_[size_t(order[i])] = stride;
      stride = stride * shape_[size_t(order[i])] + (i + 1 == order.size() ? pad : 0);
    }
    int64_t last = numel() == 0 ? -1 : 0;
    for (size_t i = 0; i < shape_.size() && last >= 0; ++i) last += (shape_[i] - 1) * strides_[i];
    size_ = size_t((last + 1) * ByteSize(type));
    memory_ = std::make_unique<testing::GuardedBytes>(size_);
    std::memset(memory_->data(), 0xAA, size_);
  }

  lz_tensor tensor() {
    const DTypeInfo& info = Info(type_);
    return {memory_->data(), {1, 0}, int32_t(shape_.size()), {info.dlpack_code, info.bits, info.lanes}, shape_.data(),
            strides_.data(), 0};
  }
  DType type() const { return type_; }
  // The same bytes, which are elements of another type of that size from now on.
  void Become(DType type) { type_ = type; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t numel() const { return std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>()); }
  std::vector<char> bytes() const { return {memory_->data(), memory_->data() + size_}; }

  std::vector<double> Values() {
    std::vector<double> values;
    ForEach([&](const View& view, int64_t offset) { values.push_back(view.Load(offset)); });
    return values;
  }
  void Set(const std::vector<double>& values) {
    size_t i = 0;
    ForEach([&](const View& view, int64_t offset) { view.Store(offset, values[i++]); });
  }
  void SetOne(int64_t index, double value) {
    int64_t i = 0;
    ForEach([&](const View& view, int64_t offset) {
      if (i++ == index) view.Store(offset, value);
    });
  }
  void FillNormal(uint32_t seed, double scale = 1, double shift = 0) {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    ForEach([&](const View& view, int64_t offset) { view.Store(offset, shift + scale * normal(generator)); });
  }
  // Bytes that belong to no element are still as they were.
  bool PaddingUntouched() {
    std::vector<char> rest = bytes();
    ForEach([&](const View&, int64_t offset) {
      std::memset(rest.data() + offset * ByteSize(type_), 0xAA, size_t(ByteSize(type_)));
    });
    return std::all_of(rest.begin(), rest.end(), [](char c) { return c == '\xAA'; });
  }

 private:
  template <class Body>
  void ForEach(Body&& body) {
    const lz_tensor t = tensor();
    const View view(t);
    for (int64_t i = 0; i < numel(); ++i) {
      int64_t offset = 0, rest = i;
      for (size_t axis = shape_.size(); axis-- > 0;) {
        offset += rest % shape_[axis] * strides_[axis];
        rest /= shape_[axis];
      }
      body(view, offset);
    }
  }

  DType type_;
  std::vector<int64_t> shape_, strides_;
  size_t size_;
  std::unique_ptr<testing::GuardedBytes> memory_;
};

inline lz_scalar Scalar(double v) { return {.value = {.f = v}, .given = 1}; }
inline lz_scalar Scalar(int64_t v) { return {.value = {.i = v}, .given = 1}; }
inline lz_scalar Scalar(bool v) { return Scalar(int64_t{v}); }

// Splits the range into parts of at most two, so that every boundary is crossed.
inline void RunParts(void*, int64_t begin, int64_t end, int64_t, lz_parallel_body body, void* context) {
  for (int64_t i = begin; i < end; i += 2) body(i, std::min(i + 2, end), context);
}

// Tensors in the contract's order, outputs last; nullptr = absent.
inline int32_t Launch(const KernelSpec& kernel, const std::vector<Array*>& arrays,
                      const std::vector<lz_scalar>& scalars, const std::vector<int64_t>& axes = {}) {
  static const lz_parallel kParallel = {&RunParts, nullptr, 2};
  std::vector<lz_tensor> tensors;
  for (Array* a : arrays) tensors.push_back(a ? a->tensor() : lz_tensor{.data = nullptr, .ndim = -1});
  lz_kernel_args args = {.size = sizeof(lz_kernel_args),
                         .tensors = tensors.data(),
                         .scalars = scalars.data(),
                         .axes = axes.data(),
                         .parallel = &kParallel};
  args.workspace_bytes = kernel.workspace ? kernel.workspace(&args) : 0;
  const size_t aligned = (args.workspace_bytes + 63) / 64 * 64;
  const testing::GuardedBytes workspace(aligned);
  std::memset(workspace.data(), 0xff, aligned);  // NaN: nothing is read before it is written
  args.workspace = workspace.data();
  return kernel.launch(&args);
}

inline double ToleranceOf(const Tolerance& t, DType type) {
  return type == DType::kF32 ? t.f32 : type == DType::kF16 ? t.f16 : type == DType::kBF16 ? t.bf16 : t.f64;
}

// |got - want| <= tolerance (1 + |want|); NaN exactly where NaN is wanted.
inline void ExpectClose(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  int failures = 0;
  for (size_t i = 0; i < got.size() && failures < 5; ++i) {
    const bool same = std::isnan(want[i])   ? std::isnan(got[i])
                      : std::isinf(want[i]) ? got[i] == want[i]
                                            : std::fabs(got[i] - want[i]) <= tolerance * (1 + std::fabs(want[i]));
    if (same) continue;
    ADD_FAILURE() << "element " << i << ": got " << got[i] << ", want " << want[i];
    ++failures;
  }
}

// Once for each instruction set that the kernels were compiled for and that this CPU has.
template <class Body>
void ForEachTarget(Body&& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

inline constexpr DType kTestTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

}  // namespace lz::testing_call
