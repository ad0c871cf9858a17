// Reference of attention.{standard,gqa}.decode.block_table: FP64, any strides, any dtype of the cache.
#include "ops/attention/block_table.h"

#include <algorithm>

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_block_table;

// The entries that sequence s sees. False: its index data is invalid.
bool Locate(const lz_kernel_args* args, int64_t s, ops::attention::DecodeSequence& out) {
  const View tables(args->tensors[kBlockTables]), cache(args->tensors[kKeyCache]);
  const lz_scalar& window = args->scalars[kWindow];
  const int64_t block_size = cache.size(1), length = View(args->tensors[kContextLens]).GetInt({s});
  if (length < 0 || length > tables.size(1) * block_size) return false;
  out = {.end = length, .first = s * tables.stride(0), .page_stride = tables.stride(1)};
  if (window.given && window.value.i > 0) out.begin = std::max<int64_t>(length - window.value.i, 0);
  return ops::attention::PagesExist(tables, out.first, out.page_stride, out.begin, out.end, block_size, cache.size(0));
}

int32_t Launch(const lz_kernel_args* args) {
  const ops::attention::DecodeTensors t{.query = View(args->tensors[kQuery]),
                                        .key = View(args->tensors[kKeyCache]),
                                        .value = View(args->tensors[kValueCache]),
                                        .pages = View(args->tensors[kBlockTables]),
                                        .sinks = View(args->tensors[kSinks])};
  const View out(args->tensors[kOutput]), lse_out(args->tensors[kLse]);
  const lz_scalar *scalars = args->scalars, &cap = scalars[kSoftcap];
  const int64_t batch = t.query.size(0);
  ops::attention::DecodeSequence seq;
  for (int64_t s = 0; s < batch; ++s) {
    if (!Locate(args, s, seq)) return 1;
  }
  for (int64_t s = 0; s < batch; ++s) {
    Locate(args, s, seq);
    ops::attention::DecodePaged(t, seq, s * t.query.stride(0), t.query.stride(2), t.query.size(2),
                                scalars[kScale].value.f, cap.given ? cap.value.f : 0.0,
                                [&](int64_t h, std::span<const double> o, double lse) {
                                  for (size_t c = 0; c < o.size(); ++c) out.Set({s, 0, h, int64_t(c)}, o[c]);
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
    Spec("ref.attention.standard.decode.block_table", "attention.standard.decode.block_table"),
    Spec("ref.attention.gqa.decode.block_table", "attention.gqa.decode.block_table"),
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
