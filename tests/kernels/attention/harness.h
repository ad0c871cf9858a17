// Calls a kernel of a family by id on tensors of f32 or bf16 that the test owns, with threads run one after another.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string_view>
#include <vector>

#include "core/float_formats.h"
#include "core/kernel.h"
#include "core/view.h"

namespace lz::testing {

inline constexpr DType kInts = DType::kI32;

// A tensor with its own memory; axes are laid out in the order of `order` (outermost first), rows may be padded.
class Array {
 public:
  Array() { t_.ndim = -1; }  // absent
  Array(DType type, std::vector<int64_t> shape, std::vector<int> order = {}, int64_t pad = 0)
      : shape_(std::move(shape)), strides_(shape_.size()) {
    if (order.empty()) {
      for (size_t i = 0; i < shape_.size(); ++i) order.push_back(int(i));
    }
    int64_t size = 1;
    for (size_t i = order.size(); i-- > 0;) {
      strides_[size_t(order[i])] = size;
      size *= shape_[size_t(order[i])] + (i + 1 == order.size() ? pad : 0);
    }
    const DTypeInfo& info = Info(type);
    data_.assign(size_t(size * ByteSize(type)) + 1, 0x7f);  // NaN-like filling where nothing is written
    data_.resize(size_t(size * ByteSize(type)));
    t_.dtype = {info.dlpack_code, info.bits, info.lanes};
    t_.device = {1, 0};
  }
  // Pointers into this object: valid until it moves.
  const lz_tensor& tensor() {
    if (t_.ndim < 0) return t_;
    t_.data = data_.data();
    t_.ndim = int32_t(shape_.size());
    t_.shape = shape_.data();
    t_.strides = strides_.data();
    return t_;
  }
  View view() { return View(tensor()); }
  bool given() const { return !shape_.empty(); }
  Array& Fill(std::mt19937& random, double scale = 1.0) {
    std::normal_distribution<double> normal(0, scale);
    return Each([&](const std::vector<int64_t>&) { return normal(random); });
  }
  template <class F>
  Array& Each(const F& value) {
    const View v = view();
    std::vector<int64_t> index(shape_.size(), 0);
    if (v.numel() == 0) return *this;
    for (bool more = true; more;) {
      v.Set(index, value(index));
      more = false;
      for (size_t i = index.size(); i-- > 0;) {
        if (++index[i] < shape_[i]) {
          more = true;
          break;
        }
        index[i] = 0;
      }
    }
    return *this;
  }

 private:
  std::vector<int64_t> shape_, strides_;
  std::vector<char> data_;
  lz_tensor t_ = {};
};

inline lz_scalar Real(double v) { return {.value = {.f = v}, .given = 1}; }
inline lz_scalar Whole(int64_t v) { return {.value = {.i = v}, .given = 1}; }
inline constexpr lz_scalar kAbsent = {};

// Runs every part with at least `grain` items, last part first.
inline void RunParts(void*, int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
  for (int64_t at = end; at > begin;) {
    const int64_t from = std::max(begin, at - grain);
    body(from, at, context);
    at = from;
  }
}

inline int32_t Call(KernelFamily family, std::string_view id, const std::vector<Array*>& arrays,
                    const std::vector<lz_scalar>& scalars, const std::vector<int64_t>& axes, int threads) {
  std::vector<lz_tensor> tensors;
  for (Array* a : arrays) tensors.push_back(a->tensor());
  const lz_parallel parallel = {&RunParts, nullptr, threads};
  lz_kernel_args args = {.size = sizeof(lz_kernel_args), .tensors = tensors.data(), .scalars = scalars.data()};
  args.axes = axes.data();
  args.parallel = &parallel;
  for (const KernelSpec& spec : family) {
    if (spec.id != id) continue;
    args.workspace_bytes = spec.workspace ? spec.workspace(&args) : 0;
    // Filled with NaN: scratch must be written before it is read.
    std::vector<char> memory(args.workspace_bytes + 64, char(0xff));
    args.workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    return spec.launch(&args);
  }
  ADD_FAILURE() << "no kernel " << id;
  return -1;
}

}  // namespace lz::testing
