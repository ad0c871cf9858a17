// Reference of attention.{standard,gqa}.decode.cascade: FP64, any strides, any dtype of prefix and cache.
#include "ops/attention/cascade.h"

#include "core/kernel.h"
#include "ops/common/paged_keys.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_cascade;
using ops::attention::Dot;
using ops::attention::PageList;
using ops::attention::UnitOf;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const View q(t[kQuery]), prefix_k(t[kSharedK]), prefix_v(t[kSharedV]), cache_k(t[kPagedKCache]),
      cache_v(t[kPagedVCache]);
  const View out(t[kOutput]), lse_out(t[kLse]);
  const lz_scalar* scalars = args->scalars;
  const ops::attention::AttentionOptions options = {.scale = scalars[kSmScale].value.f,
                                                    .softcap = scalars[kSoftcap].value.f,
                                                    .window = ops::attention::WindowOf(scalars[kWindowLeft]),
                                                    .sinks = &t[kSinks],
                                                    .slopes = &t[kAlibiSlopes]};
  const ops::attention::CsrPages pages(t[kKVIndptr], t[kKVIndices], t[kKVLastPageLen], cache_k.size(1));
  if (!pages.Valid(cache_k, q.size(0), options, [](int64_t) { return 1; })) return 1;
  const int64_t shared = prefix_k.size(0);
  for (int64_t s = 0; s < q.size(0); ++s) {
    const PageList list = pages.Sequence(s);
    ops::attention::AttendRows(
        options, {1, shared + list.length, q.size(1), cache_k.size(2), cache_v.size(3)},
        [&](int64_t, int64_t h, int64_t j, int64_t kv) {
          const bool in_prefix = j < shared;
          const View& k = in_prefix ? prefix_k : cache_k;
          const int64_t at =
              in_prefix ? j * k.stride(0) + kv * k.stride(1) : list.Offset(k, j - shared) + kv * k.stride(2);
          return Dot(q, s * q.stride(0) + h * q.stride(1), k, at, q.size(2), UnitOf(&t[kKScale], kv));
        },
        ops::attention::kNoBias,
        [&](int64_t j, int64_t kv, int64_t c) {
          const double unit = UnitOf(&t[kVScale], kv);
          if (j < shared) return unit * prefix_v.Get({j, kv, c});
          return unit * cache_v.Load(list.Offset(cache_v, j - shared) + kv * cache_v.stride(2) + c * cache_v.stride(3));
        },
        [&](int64_t, int64_t h, ops::attention::AttentionRow& row, double lse) {
          for (int64_t c = 0; c < out.size(2); ++c) out.Set({s, h, c}, row.output()[size_t(c)]);
          if (lse_out.given()) lse_out.Set({s, h}, lse);
        });
  }
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    ReferenceKernel("ref.attention.standard.decode.cascade", &Launch),
    ReferenceKernel("ref.attention.gqa.decode.cascade", &Launch),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
