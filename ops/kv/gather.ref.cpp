// Reference of kv.gather: element by element, any strides, every dtype of the cache.
#include "ops/kv/gather.h"

#include <algorithm>
#include <cstring>

#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::kv_gather;

void ReadRow(const View& cache, const View& scale, int64_t slot, const View& out, int64_t row) {
  const int64_t size = std::max<int64_t>(cache.size(1), 1);  // 0 if blocks are empty: they have no slots
  const int64_t item = ByteSize(cache.dtype());
  const int64_t block = slot / size, offset = slot % size;
  const bool copies = out.dtype() == cache.dtype() && !scale.given();
  for (int64_t h = 0; h < cache.size(2); ++h) {
    const float unit = ops::kv::ScaleOf(scale, h);
    for (int64_t i = 0; i < cache.size(3); ++i) {
      const int64_t to = row * out.stride(0) + h * out.stride(1) + i * out.stride(2);
      if (slot < 0) {
        std::memset(out.data<char>() + to * ByteSize(out.dtype()), 0, size_t(ByteSize(out.dtype())));
        continue;
      }
      const int64_t from =
          block * cache.stride(0) + offset * cache.stride(1) + h * cache.stride(2) + i * cache.stride(3);
      if (copies) {
        std::memcpy(out.data<char>() + to * item, cache.data<char>() + from * item, size_t(item));
      } else {
        out.Store(to, float(cache.Load(from)) * unit);
      }
    }
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const View cache(args->tensors[kCache]), slots(args->tensors[kSlots]), scale(args->tensors[kScale]);
  const View out(args->tensors[kOutput]);
  if (!ops::kv::SlotsValid(slots, cache.size(0) * cache.size(1))) return ops::kv::kSlotOutOfRange;
  for (int64_t i = 0; i < slots.size(0); ++i) ReadRow(cache, scale, slots.GetInt({i}), out, i);
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.kv.gather", &Launch, ops::kv::kCacheDTypes)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
