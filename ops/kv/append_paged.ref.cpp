// Reference of kv.append_paged: element by element, any strides, every dtype of rows and cache.
#include "ops/kv/append_paged.h"

#include <cstring>

#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::kv_append_paged;

void WriteRow(const View& cache, const View& rows, const View& scale, int64_t row, int64_t slot) {
  const int64_t size = cache.size(1), block = slot / size, offset = slot % size, item = ByteSize(cache.dtype());
  const bool copies = rows.dtype() == cache.dtype() && !scale.given();
  for (int64_t h = 0; h < cache.size(2); ++h) {
    const float unit = ops::kv::ScaleOf(scale, h);
    for (int64_t i = 0; i < cache.size(3); ++i) {
      const int64_t to = block * cache.stride(0) + offset * cache.stride(1) + h * cache.stride(2) + i * cache.stride(3);
      const int64_t from = row * rows.stride(0) + h * rows.stride(1) + i * rows.stride(2);
      if (copies) {
        std::memcpy(cache.data<char>() + to * item, rows.data<char>() + from * item, size_t(item));
      } else {
        ops::kv::StoreValue(cache, to, float(rows.Load(from)) / unit);
      }
    }
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const View slots(args->tensors[kSlots]);
  if (!ops::kv::SlotsValid(slots, args->axes[kBlocks] * args->axes[kBlockSize])) return ops::kv::kSlotOutOfRange;
  const View keys(args->tensors[kKeyCache]), values(args->tensors[kValueCache]);
  const View key(args->tensors[kKey]), value(args->tensors[kValue]);
  const View k_scale(args->tensors[kKScale]), v_scale(args->tensors[kVScale]);
  for (int64_t i = 0; i < slots.size(0); ++i) {
    const int64_t slot = slots.GetInt({i});
    if (slot < 0) continue;
    WriteRow(keys, key, k_scale, i, slot);
    WriteRow(values, value, v_scale, i, slot);
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.kv.append_paged", &Launch, ops::kv::kCacheDTypes)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
