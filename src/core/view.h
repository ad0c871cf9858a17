// Strided element access for references and checks: any dtype, read and written as double. Correct first, not fast.
//   View x(args.tensors[kInput]);  double v = x.Get({row, column});  out.Set({row, column}, v);
#pragma once

#include <bit>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>

#include "core/dtype.h"
#include "core/float_formats.h"

namespace lz {

class View {
 public:
  explicit View(const lz_tensor& t)
      : t_(&t), type_(DTypeOf(t)), size_(ByteSize(type_)), base_(static_cast<char*>(t.data) + t.byte_offset) {}

  bool given() const { return t_->ndim >= 0; }
  DType dtype() const { return type_; }
  int ndim() const { return t_->ndim; }
  int64_t size(int i) const { return t_->shape[i < 0 ? i + t_->ndim : i]; }
  int64_t stride(int i) const { return t_->strides[i < 0 ? i + t_->ndim : i]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < t_->ndim; ++i) n *= t_->shape[i];
    return n;
  }

  double Get(std::initializer_list<int64_t> index) const { return Load(Offset({index.begin(), index.size()})); }
  int64_t GetInt(std::initializer_list<int64_t> index) const { return LoadInt(Offset({index.begin(), index.size()})); }
  void Set(std::initializer_list<int64_t> index, double v) const { Store(Offset({index.begin(), index.size()}), v); }
  void SetInt(std::initializer_list<int64_t> index, int64_t v) const {
    StoreInt(Offset({index.begin(), index.size()}), v);
  }
  double Get(std::span<const int64_t> index) const { return Load(Offset(index)); }
  void Set(std::span<const int64_t> index, double v) const { Store(Offset(index), v); }

  // The same with the leading axes folded: row r of [..., n], in row-major order of the leading axes.
  int64_t rows() const {
    const int64_t last = t_->ndim > 0 ? t_->shape[t_->ndim - 1] : 1;
    if (last != 0) return numel() / last;
    int64_t n = 1;
    for (int i = 0; i + 1 < t_->ndim; ++i) n *= t_->shape[i];
    return n;
  }
  int64_t RowOffset(int64_t row) const {  // in elements
    int64_t offset = 0;
    for (int i = t_->ndim - 2; i >= 0; --i) {
      offset += (row % t_->shape[i]) * t_->strides[i];
      row /= t_->shape[i];
    }
    return offset;
  }
  double GetRow(int64_t row, int64_t column) const { return Load(RowOffset(row) + column * stride(-1)); }
  void SetRow(int64_t row, int64_t column, double v) const { Store(RowOffset(row) + column * stride(-1), v); }

  template <class T>
  T* data() const {
    return reinterpret_cast<T*>(base_);
  }

  // Reads at an offset in elements from the first element.
  double Load(int64_t offset) const {
    const char* p = base_ + offset * size_;
    switch (type_) {
      case DType::kF64: return Raw<double>(p);
      case DType::kF32: return Raw<float>(p);
      case DType::kF16: return F16ToFloat(Raw<uint16_t>(p));
      case DType::kBF16: return BF16ToFloat(Raw<uint16_t>(p));
      case DType::kF8E4M3: return F8E4M3ToFloat(Raw<uint8_t>(p));
      case DType::kF8E5M2: return F8E5M2ToFloat(Raw<uint8_t>(p));
      case DType::kF8E8M0: return F8E8M0ToFloat(Raw<uint8_t>(p));
      default: return double(LoadInt(offset));
    }
  }
  int64_t LoadInt(int64_t offset) const {
    const char* p = base_ + offset * size_;
    switch (type_) {
      case DType::kI64: return Raw<int64_t>(p);
      case DType::kI32: return Raw<int32_t>(p);
      case DType::kI16: return Raw<int16_t>(p);
      case DType::kI8: return Raw<int8_t>(p);
      case DType::kU8: return Raw<uint8_t>(p);
      case DType::kBool: return Raw<uint8_t>(p) != 0;
      default: return int64_t(Load(offset));
    }
  }
  void Store(int64_t offset, double v) const {
    char* p = base_ + offset * size_;
    switch (type_) {
      case DType::kF64: return Put(p, v);
      case DType::kF32: return Put(p, float(v));
      case DType::kF16: return Put(p, DoubleToF16(v));
      case DType::kBF16: return Put(p, DoubleToBF16(v));
      default: return StoreInt(offset, int64_t(v));
    }
  }
  void StoreInt(int64_t offset, int64_t v) const {
    char* p = base_ + offset * size_;
    switch (type_) {
      case DType::kI64: return Put(p, v);
      case DType::kI32: return Put(p, int32_t(v));
      case DType::kI16: return Put(p, int16_t(v));
      case DType::kI8: return Put(p, int8_t(v));
      case DType::kU8: return Put(p, uint8_t(v));
      case DType::kBool: return Put(p, uint8_t(v != 0));
      case DType::kF64:
      case DType::kF32:
      case DType::kF16:
      case DType::kBF16: return Store(offset, double(v));
      default: assert(!"the operation defines how a value becomes a float8");
    }
  }

 private:
  template <class T>
  static T Raw(const char* p) {
    T v;
    std::memcpy(&v, p, sizeof(T));
    return v;
  }
  template <class T>
  static void Put(char* p, T v) {
    std::memcpy(p, &v, sizeof(T));
  }
  int64_t Offset(std::span<const int64_t> index) const {
    int64_t offset = 0;
    for (size_t i = 0; i < index.size(); ++i) offset += index[i] * t_->strides[i];
    return offset;
  }

  const lz_tensor* t_;
  DType type_;
  int64_t size_;
  char* base_;
};

}  // namespace lz
