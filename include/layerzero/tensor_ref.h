// A borrowed tensor for calls from C++: pointer, dtype, shape and strides, in DLPack's layout.
//
//   TensorRef x(data, {4, 4096});                           // contiguous, on the CPU, dtype of the pointer
//   TensorRef y(data, {4, 64}, {128, 1});                   // strides in elements
//   TensorRef z(device_pointer, kBF16, {4, 4096}, {}, {2, 0});  // CUDA device 0; 16-bit floats name their dtype
//   TensorRef d = TensorRef::FromDLPack(managed->dl_tensor);
//   TensorRef absent;                                       // an optional tensor that is omitted
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>

#include "layerzero/c_abi.h"

namespace layerzero {

inline constexpr lz_dtype kF64{2, 64, 1}, kF32{2, 32, 1}, kF16{2, 16, 1}, kBF16{4, 16, 1}, kF8E4M3{10, 8, 1},
    kF8E5M2{12, 8, 1}, kI64{0, 64, 1}, kI32{0, 32, 1}, kI16{0, 16, 1}, kI8{0, 8, 1}, kU8{1, 8, 1}, kBool{6, 8, 1};
inline constexpr lz_device kCpu{1, 0};

template <class T>
concept Element = std::is_arithmetic_v<T> &&(sizeof(T) <= 8);
template <Element T>
constexpr lz_dtype DTypeOf() {
  if constexpr (std::is_same_v<T, bool>) return kBool;
  if constexpr (std::is_floating_point_v<T>) return {2, 8 * sizeof(T), 1};
  return {std::is_signed_v<T> ? uint8_t{0} : uint8_t{1}, 8 * sizeof(T), 1};
}

// Converts an lz_device or a DLDevice.
template <class Device>
constexpr lz_device DeviceOf(const Device& d) {
  if constexpr (requires { d.device_type; }) {
    return {int32_t(d.device_type), int32_t(d.device_id)};
  } else {
    return {d.type, d.id};
  }
}

class TensorRef {
 public:
  static constexpr int kMaxRank = 8;
  using Sizes = std::span<const int64_t>;
  using List = std::initializer_list<int64_t>;

  TensorRef() = default;
  // A rank above 8, or strides whose rank differs from the shape's, make a tensor of rank 9, which every
  // operation refuses.
  TensorRef(const void* data, lz_dtype dtype, Sizes shape, Sizes strides = {}, lz_device device = kCpu)
      : data_(const_cast<void*>(data)), device_(device), dtype_(dtype), ndim_(int32_t(shape.size())) {
    if (shape.size() > kMaxRank || (!strides.empty() && strides.size() != shape.size())) {
      ndim_ = kMaxRank + 1;
      return;
    }
    std::copy(shape.begin(), shape.end(), shape_.begin());
    std::copy(strides.begin(), strides.end(), strides_.begin());
    if (!strides.empty()) return;
    int64_t n = 1;
    for (size_t i = shape.size(); i-- > 0; n *= shape[i]) strides_[i] = n;
  }
  TensorRef(const void* data, lz_dtype dtype, List shape, List strides = {}, lz_device device = kCpu)
      : TensorRef(data, dtype, Sizes(shape.begin(), shape.size()), Sizes(strides.begin(), strides.size()), device) {}
  template <Element T>
  TensorRef(const T* data, List shape, List strides = {}, lz_device device = kCpu)
      : TensorRef(data, DTypeOf<T>(), shape, strides, device) {}
  template <Element T>
  TensorRef(const T* data, Sizes shape, Sizes strides = {}, lz_device device = kCpu)
      : TensorRef(data, DTypeOf<T>(), shape, strides, device) {}

  // Any struct with the fields of DLPack's DLTensor (lz_tensor is one); `strides` may be null.
  template <class DL>
  static TensorRef FromDLPack(const DL& t) {
    if (t.ndim < 0) return {};
    const Sizes shape(t.shape, size_t(t.ndim));
    TensorRef out(t.data, {uint8_t(t.dtype.code), uint8_t(t.dtype.bits), uint16_t(t.dtype.lanes)}, shape,
                  t.strides ? Sizes(t.strides, size_t(t.ndim)) : Sizes(), DeviceOf(t.device));
    out.byte_offset_ = t.byte_offset;
    return out;
  }

  bool given() const { return ndim_ != -1; }
  int32_t ndim() const { return ndim_; }
  int64_t size(int axis) const { return shape_[size_t(axis)]; }
  lz_dtype dtype() const { return dtype_; }
  int64_t NumElements() const {
    int64_t n = 1;
    for (int32_t i = 0; i < ndim_ && i < kMaxRank; ++i) n *= shape_[size_t(i)];
    return n;
  }
  // Valid while this object lives.
  lz_tensor View() { return {data_, device_, ndim_, dtype_, shape_.data(), strides_.data(), byte_offset_}; }

 private:
  void* data_ = nullptr;
  lz_device device_ = kCpu;
  lz_dtype dtype_{};
  int32_t ndim_ = -1;
  std::array<int64_t, kMaxRank> shape_{}, strides_{};
  uint64_t byte_offset_ = 0;
};

}  // namespace layerzero
