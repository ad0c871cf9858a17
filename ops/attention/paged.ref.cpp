// Reference of attention.{standard,gqa}.decode.paged: FP64, any strides, any dtype of the cache.
#include "ops/attention/paged.h"

#include <algorithm>

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_paged;

// The entries that sequence s sees. False: its index data is invalid.
bool Locate(const lz_kernel_args* args, int64_t s, ops::attention::DecodeSequence& out) {
  const View indptr(args->tensors[kKVIndptr]), indices(args->tensors[kKVIndices]);
  const View last_page_len(args->tensors[kKVLastPageLen]), cache(args->tensors[kKCache]);
  const int64_t page_size = cache.size(1), window_left = args->scalars[kWindowLeft].value.i;
  const int64_t pages = indptr.GetInt({s + 1}) - indptr.GetInt({s});
  out = {.first = indptr.GetInt({s}) * indices.stride(0), .page_stride = indices.stride(0)};
  if (pages == 0) return true;
  const int64_t last = last_page_len.GetInt({s});
  if (last < 0 || last > page_size) return false;
  out.end = (pages - 1) * page_size + last;
  if (window_left >= 0) out.begin = std::max<int64_t>(out.end - 1 - window_left, 0);
  return ops::attention::PagesExist(indices, out.first, out.page_stride, out.begin, out.end, page_size, cache.size(0));
}

int32_t Launch(const lz_kernel_args* args) {
  const ops::attention::DecodeTensors t{.query = View(args->tensors[kQuery]),
                                        .key = View(args->tensors[kKCache]),
                                        .value = View(args->tensors[kVCache]),
                                        .pages = View(args->tensors[kKVIndices]),
                                        .sinks = View(args->tensors[kSinks])};
  const View out(args->tensors[kOutput]), lse_out(args->tensors[kLse]);
  const lz_scalar *scalars = args->scalars, &cap = scalars[kSoftcap];
  const int64_t batch = t.query.size(0);
  if (!ops::attention::OffsetsValid(View(args->tensors[kKVIndptr]), t.pages.size(0))) return 1;
  ops::attention::DecodeSequence seq;
  for (int64_t s = 0; s < batch; ++s) {
    if (!Locate(args, s, seq)) return 1;
  }
  for (int64_t s = 0; s < batch; ++s) {
    Locate(args, s, seq);
    ops::attention::DecodePaged(t, seq, s * t.query.stride(0), t.query.stride(1), t.query.size(1),
                                scalars[kSmScale].value.f, cap.given ? cap.value.f : 0.0,
                                [&](int64_t h, std::span<const double> o, double lse) {
                                  for (size_t c = 0; c < o.size(); ++c) out.Set({s, h, int64_t(c)}, o[c]);
                                  if (lse_out.given()) lse_out.Set({s, h}, lse);
                                });
  }
  return 0;
}

constexpr KernelSpec Spec(std::string_view id, std::string_view operation) {
  return {.id = id,
          .operation = operation,
          .dtypes = kFloats,
          .accepts = kAcceptsAll,
          .strides = Strides::kAny,
          .priority = 0,
          .deterministic = true,
          .reference = true,
          .launch = &Launch};
}
constexpr auto kFamily = std::to_array<KernelSpec>({
    Spec("ref.attention.standard.decode.paged", "attention.standard.decode.paged"),
    Spec("ref.attention.gqa.decode.paged", "attention.gqa.decode.paged"),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
