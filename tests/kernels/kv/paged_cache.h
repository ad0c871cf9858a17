// A paged cache and rows for tests of kernels on KV caches: every byte has a value of its own.
#pragma once

#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/kernel.h"

namespace lz::testing_kv {

// Splits after every item: all boundaries are crossed.
inline void RunParts(void*, int64_t begin, int64_t end, int64_t, lz_parallel_body body, void* context) {
  for (int64_t i = begin; i < end; ++i) body(i, i + 1, context);
}
inline constexpr lz_parallel kParallel = {&RunParts, nullptr, 2};

class Array {
 public:
  // `order`: the axes from the outermost in memory to the innermost; empty: as they are.
  Array(DType type, std::vector<int64_t> shape, int seed, std::vector<size_t> order = {})
      : type_(type), shape_(std::move(shape)), strides_(shape_.size()) {
    if (order.empty()) {
      for (size_t i = 0; i < shape_.size(); ++i) order.push_back(i);
    }
    int64_t elements = 1;
    for (size_t i = order.size(); i-- > 0;) {
      strides_[order[i]] = elements;
      elements *= shape_[order[i]];
    }
    bytes_.resize(size_t(elements * ByteSize(type)));
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = char(size_t(seed) + i * 37 + i / 251);
  }
  template <class T>
  Array(DType type, const std::vector<T>& values) : Array(type, {int64_t(values.size())}, 0) {
    std::copy_n(reinterpret_cast<const char*>(values.data()), bytes_.size(), bytes_.begin());
  }

  lz_tensor tensor() {
    const DTypeInfo& info = Info(type_);
    return {bytes_.data(),   {1, 0}, int32_t(shape_.size()), {info.dlpack_code, info.bits, info.lanes}, shape_.data(),
            strides_.data(), 0};
  }
  // The bytes of the row [index..., :].
  std::vector<char> Row(std::initializer_list<int64_t> index) const {
    int64_t offset = 0;
    size_t axis = 0;
    for (int64_t i : index) offset += i * strides_[axis++];
    const int64_t item = ByteSize(type_), n = shape_.back();
    return {bytes_.begin() + offset * item, bytes_.begin() + (offset + n) * item};
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  DType type_;
  std::vector<int64_t> shape_, strides_;
  std::vector<char> bytes_;
};

inline constexpr lz_tensor kAbsent = {nullptr, {1, 0}, -1, {0, 0, 0}, nullptr, nullptr, 0};

inline int32_t Launch(const KernelSpec& kernel, std::vector<lz_tensor> tensors, std::vector<int64_t> axes) {
  lz_kernel_args args{};
  args.size = sizeof(args);
  args.tensors = tensors.data();
  args.axes = axes.data();
  args.parallel = &kParallel;
  return kernel.launch(&args);
}

}  // namespace lz::testing_kv
