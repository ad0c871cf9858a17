// Copies between rows [n, h_kv, d] and the slots of a paged cache [blocks, block_size, h_kv, d], per head or as
// a whole.
#pragma once

#include <cstring>

#include "core/dtype.h"
#include "kernels/launch.h"

namespace lz::kv {

// Rows that pay for waking another thread: about 3 us of copying.
inline int64_t GrainOf(int64_t row_bytes) { return 64 * 1024 / (row_bytes + 1) + 1; }

// Reads slots of either integer dtype.
class SlotReader {
 public:
  explicit SlotReader(const lz_tensor& slots)
      : narrow_(DTypeOf(slots) == DType::kI32), count_(slots.shape[0]), stride_(slots.strides[0]), slots_(slots) {}
  int64_t operator[](int64_t i) const {
    return narrow_ ? Data<const int32_t>(slots_)[i * stride_] : Data<const int64_t>(slots_)[i * stride_];
  }
  bool AllBelow(int64_t end) const {
    for (int64_t i = 0; i < count_; ++i) {
      if ((*this)[i] >= end) return false;
    }
    return true;
  }

 private:
  bool narrow_;
  int64_t count_, stride_;
  const lz_tensor& slots_;
};

enum class Direction : uint8_t { kIntoCache, kFromCache };

class PagedRows {
 public:
  PagedRows(const lz_tensor& cache, const lz_tensor& rows)
      : cache_(Data<char>(cache)), rows_(Data<char>(rows)), block_size_(cache.shape[1]), heads_(cache.shape[2]) {
    const int64_t item = ByteSize(DTypeOf(cache));
    head_bytes_ = cache.shape[3] * item;
    block_stride_ = cache.strides[0] * item;
    slot_stride_ = cache.strides[1] * item;
    cache_head_stride_ = cache.strides[2] * item;
    row_stride_ = rows.strides[0] * item;
    row_head_stride_ = rows.strides[1] * item;
    if (heads_ > 1 && cache_head_stride_ == head_bytes_ && row_head_stride_ == head_bytes_) {
      head_bytes_ *= heads_;
      heads_ = 1;
    }
  }
  int64_t row_bytes() const { return heads_ * head_bytes_; }

  void Copy(Direction direction, int64_t slot, int64_t row) const {
    char* at = cache_ + slot / block_size_ * block_stride_ + slot % block_size_ * slot_stride_;
    char* mine = rows_ + row * row_stride_;
    for (int64_t h = 0; h < heads_ && head_bytes_ > 0; ++h, at += cache_head_stride_, mine += row_head_stride_) {
      const bool into = direction == Direction::kIntoCache;
      std::memcpy(into ? at : mine, into ? mine : at, size_t(head_bytes_));
    }
  }
  void Clear(int64_t row) const {
    char* mine = rows_ + row * row_stride_;
    for (int64_t h = 0; h < heads_ && head_bytes_ > 0; ++h, mine += row_head_stride_) {
      std::memset(mine, 0, size_t(head_bytes_));
    }
  }

 private:
  char *cache_, *rows_;
  int64_t block_size_, heads_, head_bytes_, block_stride_, slot_stride_, cache_head_stride_, row_stride_,
      row_head_stride_;
};

}  // namespace lz::kv
