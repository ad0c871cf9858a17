// Reference of attention.{standard,gqa}.decode.block_table: FP64, any strides, any dtype of the cache.
#include "ops/attention/block_table.h"

#include "core/kernel.h"
#include "ops/common/paged_keys.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_block_table;
using ops::attention::AttentionRow;
using ops::attention::PageList;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const View q(t[kQuery]), cache(t[kKeyCache]), tables(t[kBlockTables]), lens(t[kContextLens]);
  const View out(t[kOutput]), lse_out(t[kLse]);
  const ops::attention::AttentionOptions options = {.scale = args->scalars[kScale].value.f,
                                                    .softcap = args->scalars[kSoftcap].value.f,
                                                    .window = args->scalars[kWindow].value.i,
                                                    .sinks = &t[kSinks],
                                                    .slopes = &t[kAlibiSlopes]};
  const auto sequence = [&](int64_t s) {
    return PageList{&tables, s * tables.stride(0), tables.stride(1), lens.GetInt({s})};
  };
  for (int64_t s = 0; s < q.size(0); ++s) {
    const PageList list = sequence(s);
    if (list.length < 0 || list.length > tables.size(1) * cache.size(1)) return 1;
    const auto seen = ops::attention::VisibleKeys(false, options.window, list.length - 1, list.length);
    if (!list.Exist(cache, seen.begin, seen.end)) return 1;
  }
  for (int64_t s = 0; s < q.size(0); ++s) {
    ops::attention::AttendPaged(options, {t[kQuery], t[kKeyCache], t[kValueCache], &t[kKScale], &t[kVScale]},
                                sequence(s), 1, s * q.stride(0), 0, q.stride(2),
                                [&](int64_t, int64_t h, AttentionRow& row, double lse) {
                                  for (int64_t c = 0; c < out.size(3); ++c) {
                                    out.Set({s, 0, h, c}, row.output()[size_t(c)]);
                                  }
                                  if (lse_out.given()) lse_out.Set({s, h}, lse);
                                });
  }
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    ReferenceKernel("ref.attention.standard.decode.block_table", &Launch),
    ReferenceKernel("ref.attention.gqa.decode.block_table", &Launch),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
