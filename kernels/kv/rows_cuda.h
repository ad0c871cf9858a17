// Copies between rows [n, h, d] and the slots of a paged cache [blocks, block_size, h, d] on CUDA: bit for bit, 16
// bytes at a time where addresses and strides allow, or converted element by element. The host cannot see slots without
// waiting for the device: a row whose slot is outside the cache is treated as one without a slot.
#pragma once

#include "kernels/cuda_types.h"

namespace lz::kv {

// Strides in units: elements, or 16 bytes.
struct PagedSide {
  const void* rows;
  const void* cache;
  const float* scale;    // nullptr: 1
  int64_t scale_stride;  // 0: one for all heads
  int64_t row, row_head, block, slot, head;
  int64_t block_size, slots;  // slots of the cache; block_size is 0 where one stride leads from each slot to the next
  int32_t heads, width;       // units of a head
  DType rows_type, cache_type;
};
struct PagedSides {
  PagedSide side[2];  // keys and values
  const void* slots;
  int64_t slot_stride, n;
  bool wide_slots;
};

inline PagedSide SideOf(const lz_tensor& rows, const lz_tensor& cache, const lz_tensor* scale) {
  PagedSide s = {.rows = Data<void>(rows),
                 .cache = Data<void>(cache),
                 .row = rows.strides[0],
                 .row_head = rows.strides[1],
                 .block = cache.strides[0],
                 .slot = cache.strides[1],
                 .head = cache.strides[2],
                 .block_size = cache.strides[0] == cache.shape[1] * cache.strides[1] ? 0 : cache.shape[1],
                 .slots = cache.shape[0] * cache.shape[1],
                 .heads = int32_t(cache.shape[2]),
                 .width = int32_t(cache.shape[3]),
                 .rows_type = DTypeOf(rows),
                 .cache_type = DTypeOf(cache)};
  if (scale && Given(*scale)) {
    s.scale = Data<const float>(*scale);
    s.scale_stride = scale->ndim == 1 && scale->shape[0] > 1 ? scale->strides[0] : 0;
  }
  if (s.scale_stride == 0 && s.head == s.width && s.row_head == s.width) {  // heads follow one another
    s.width *= s.heads;
    s.heads = 1;
  }
  return s;
}

#ifdef __CUDACC__
inline constexpr int kPagedThreads = 256;
inline constexpr int64_t kFewRows = 1024;  // fewer do not fill the device: a block for each

// 16 bytes a unit.
inline bool ToWide(PagedSide* s) {
  const int64_t size = ByteSize(s->cache_type), lanes = kVectorBytes / size;
  const bool fits = Aligned(s->rows, s->cache) && s->width % lanes == 0 && s->row % lanes == 0 &&
                    s->row_head % lanes == 0 && s->block % lanes == 0 && s->slot % lanes == 0 && s->head % lanes == 0;
  if (!fits) return false;
  for (int64_t* stride : {&s->row, &s->row_head, &s->block, &s->slot, &s->head}) *stride /= lanes;
  s->width = int32_t(s->width / lanes);
  return true;
}

// Where a slot begins. Divisions of 64 bits take as long as a load.
__device__ inline int64_t SlotOffset(const PagedSide& s, int64_t slot) {
  if (s.block_size == 0) return slot * s.slot;
  if (s.slots <= 0x7fffffff) {
    const auto at = uint32_t(slot), size = uint32_t(s.block_size), block = at / size;
    return block * s.block + (at - block * size) * s.slot;
  }
  return slot / s.block_size * s.block + slot % s.block_size * s.slot;
}

// kInto: from rows into the cache, rows without a slot are left out; else from the cache, and they become 0.
template <class Unit, bool kInto>
__device__ void CopyUnit(const PagedSide& s, int64_t row, int64_t slot, int64_t at_slot, int h, int j) {
  const int64_t at_row = row * s.row + h * s.row_head + j;
  const int64_t at_cache = at_slot + h * s.head + j;
  Unit* rows = static_cast<Unit*>(const_cast<void*>(s.rows));
  Unit* cache = static_cast<Unit*>(const_cast<void*>(s.cache));
  if constexpr (kInto) {
    cache[at_cache] = rows[at_row];
  } else {
    rows[at_row] = slot < 0 ? Unit{} : cache[at_cache];
  }
}
// Divided by the scale into the cache, multiplied with it out of it, in float32.
template <bool kInto>
__device__ void ConvertUnit(const PagedSide& s, int64_t row, int64_t slot, int64_t at_slot, int h, int j) {
  const int64_t at_row = row * s.row + h * s.row_head + j;
  const int64_t at_cache = at_slot + h * s.head + j;
  const float scale = s.scale ? s.scale[h * s.scale_stride] : 1.0f;
  if constexpr (kInto) {
    const float v = LoadFloat(s.rows, at_row, s.rows_type);
    StoreFloat(const_cast<void*>(s.cache), at_cache, s.cache_type, s.scale ? v / scale : v);
  } else {
    const float v = slot < 0 ? 0.0f : LoadFloat(s.cache, at_cache, s.cache_type);
    StoreFloat(const_cast<void*>(s.rows), at_row, s.rows_type, slot < 0 || !s.scale ? v : v * scale);
  }
}

struct Convert {};

// A block takes rows of one side in turn, blockDim.y at once.
template <class Unit, bool kInto>
__global__ void __launch_bounds__(kPagedThreads) Paged(const PagedSides a) {
  // An index that the compiler knows: parameters at others are loaded one after another.
  const PagedSide& s = kInto && blockIdx.y == 1 ? a.side[1] : a.side[0];
  const int items = s.heads * s.width;
  for (int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; row < a.n;
       row += int64_t(gridDim.x) * blockDim.y) {
    int64_t slot = LoadIndex(a.slots, row * a.slot_stride, a.wide_slots);
    if (slot >= s.slots) slot = -1;
    if (kInto && slot < 0) continue;
    const int64_t at_slot = slot < 0 ? 0 : SlotOffset(s, slot);
    for (int i = threadIdx.x; i < items; i += blockDim.x) {
      const int h = s.heads == 1 ? 0 : i / s.width, j = i - h * s.width;
      if constexpr (std::is_same_v<Unit, Convert>) {
        ConvertUnit<kInto>(s, row, slot, at_slot, h, j);
      } else {
        CopyUnit<Unit, kInto>(s, row, slot, at_slot, h, j);
      }
    }
  }
}

template <bool kInto>
int32_t LaunchPaged(PagedSides a, int sides, const lz_tensor& slots, void* stream) {
  a.slots = Data<void>(slots);
  a.slot_stride = slots.strides[0];
  a.n = slots.shape[0];
  a.wide_slots = DTypeOf(slots) == DType::kI64;
  bool copied = true, wide = true;
  int most = 0;
  PagedSides narrow = a;
  for (int i = 0; i < sides; ++i) {
    copied &= !a.side[i].scale && a.side[i].rows_type == a.side[i].cache_type;
    wide = wide && copied && ToWide(&a.side[i]);
  }
  if (!wide) a = narrow;
  for (int i = 0; i < sides; ++i) {
    const int items = a.side[i].heads * a.side[i].width;
    most = items > most ? items : most;
  }
  if (a.n == 0 || most == 0) return 0;
  const unsigned lanes = unsigned(most < kPagedThreads ? (most + kWarp - 1) / kWarp * kWarp : kPagedThreads);
  const dim3 threads(lanes, a.n < kFewRows ? 1 : kPagedThreads / lanes);
  const int64_t blocks = (a.n + threads.y - 1) / threads.y;
  const dim3 grid(unsigned(blocks < int64_t{1} << 30 ? blocks : int64_t{1} << 30), unsigned(sides));
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  if (!copied) {
    Paged<Convert, kInto><<<grid, threads, 0, s>>>(a);
  } else if (wide) {
    Paged<uint4, kInto><<<grid, threads, 0, s>>>(a);
  } else {
    switch (ByteSize(a.side[0].cache_type)) {
      case 1: Paged<uint8_t, kInto><<<grid, threads, 0, s>>>(a); break;
      case 2: Paged<uint16_t, kInto><<<grid, threads, 0, s>>>(a); break;
      case 4: Paged<uint32_t, kInto><<<grid, threads, 0, s>>>(a); break;
      default: Paged<uint64_t, kInto><<<grid, threads, 0, s>>>(a); break;
    }
  }
  return Launched();
}
#endif  // __CUDACC__

}  // namespace lz::kv
