// Tensors of cases: memory with guards around the elements.
#include <algorithm>
#include <cstring>

#include "verify/case.h"

namespace lz::verify {

OwnedTensor::OwnedTensor(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides, int64_t offset)
    : given_(true), dtype_(dtype), shape_(std::move(shape)), strides_(std::move(strides)), offset_(offset) {
  int64_t last = 0;
  for (size_t i = 0; i < shape_.size(); ++i) last += std::max<int64_t>(0, shape_[i] - 1) * strides_[i];
  num_bytes_ = size_t((offset_ + last + 1) * ByteSize(dtype_));
  if (numel() == 0) num_bytes_ = size_t(offset_ * ByteSize(dtype_));
  memory_.resize(2 + (num_bytes_ + sizeof(Chunk) - 1) / sizeof(Chunk));
  std::memset(static_cast<void*>(memory_.data()), kGuard, memory_.size() * sizeof(Chunk));
}

namespace {
std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  uint64_t stride = 1;  // wraps if an axis is huge and another one is 0: such strides are never used
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = int64_t(stride);
    stride *= uint64_t(shape[i]);
  }
  return strides;
}
}  // namespace

OwnedTensor OwnedTensor::RowMajor(DType dtype, std::vector<int64_t> shape) {
  std::vector<int64_t> strides = RowMajorStrides(shape);
  return OwnedTensor(dtype, std::move(shape), std::move(strides));
}

OwnedTensor OwnedTensor::WithoutElements(DType dtype, std::vector<int64_t> shape) {
  OwnedTensor t(dtype, {0}, {1});
  t.strides_ = RowMajorStrides(shape);
  t.shape_ = std::move(shape);
  return t;
}

int64_t OwnedTensor::numel() const {
  int64_t n = given_ ? 1 : 0;
  for (int64_t size : shape_) n *= size;
  return n;
}

int64_t OwnedTensor::ElementOffset(int64_t flat) const {
  int64_t offset = 0;
  for (size_t i = shape_.size(); i-- > 0;) {
    offset += flat % shape_[i] * strides_[i];
    flat /= shape_[i];
  }
  return offset;
}

lz_tensor OwnedTensor::tensor() {
  if (!given_) return AbsentTensor();
  const DTypeInfo& info = Info(dtype_);
  const int64_t item = ByteSize(dtype_);
  return {
      data() + offset_ * item, {1, 0}, int32_t(shape_.size()), {info.dlpack_code, info.bits, info.lanes}, shape_.data(),
      strides_.data(),         0};
}

bool OwnedTensor::GuardsIntact() const {
  const size_t item = size_t(ByteSize(dtype_)), size = memory_.size() * sizeof(Chunk);
  const auto* bytes = reinterpret_cast<const unsigned char*>(memory_.data());
  const auto is_guard = [](unsigned char c) { return c == kGuard; };
  const size_t first = kGuardBytes + size_t(offset_) * item;
  const bool apart = std::find(strides_.begin(), strides_.end(), 0) == strides_.end();  // no two elements share
                                                                                        // an address
  if (apart && first + size_t(numel()) * item == kGuardBytes + num_bytes_) {            // no gaps between the elements
    return std::all_of(bytes, bytes + first, is_guard) &&
           std::all_of(bytes + kGuardBytes + num_bytes_, bytes + size, is_guard);
  }
  std::vector<unsigned char> rest(bytes, bytes + size);
  ForEach(
      [&](int64_t, int64_t at) { std::memset(rest.data() + kGuardBytes + size_t(offset_ + at) * item, kGuard, item); });
  return std::all_of(rest.begin(), rest.end(), is_guard);
}

bool OwnedTensor::SameBytes(const OwnedTensor& other) const {
  if (memory_.empty() || memory_.size() != other.memory_.size()) return memory_.size() == other.memory_.size();
  return std::memcmp(memory_.data(), other.memory_.data(), memory_.size() * sizeof(Chunk)) == 0;
}

}  // namespace lz::verify
