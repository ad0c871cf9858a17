// Reference of kv.append_paged: element by element, any strides, every dtype of rows and cache.
#include "ops/kv/append_paged.h"

#include "ops/common/kv_write.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::kv_append_paged;

int32_t Launch(const lz_kernel_args* args) {
  const View slots(args->tensors[kSlots]);
  if (!ops::kv::SlotsValid(slots, args->axes[kBlocks] * args->axes[kBlockSize])) return ops::kv::kSlotOutOfRange;
  const View keys(args->tensors[kKeyCache]), values(args->tensors[kValueCache]);
  const View key(args->tensors[kKey]), value(args->tensors[kValue]);
  const View k_scale(args->tensors[kKScale]), v_scale(args->tensors[kVScale]);
  for (int64_t i = 0; i < slots.size(0); ++i) {
    const int64_t slot = slots.GetInt({i});
    if (slot < 0) continue;
    ops::kv::WriteRow(keys, key, k_scale, i, slot);
    ops::kv::WriteRow(values, value, v_scale, i, slot);
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.kv.append_paged", &Launch, ops::kv::kCacheDTypes)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
