// Reference of attention.mla.decode.paged: FP64, any strides, any dtype of the cache.
#include "ops/attention/mla_decode_paged.h"

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_mla_decode_paged;
using ops::attention::Dot;

// Number of entries of sequence s; -1 if its index data is invalid.
int64_t Length(const lz_kernel_args* args, int64_t s) {
  const View indptr(args->tensors[kKVIndptr]), indices(args->tensors[kKVIndices]), cache(args->tensors[kCkvCache]);
  const int64_t page_size = cache.size(1), first = indptr.GetInt({s}), pages = indptr.GetInt({s + 1}) - first;
  if (pages == 0) return 0;
  const int64_t last = View(args->tensors[kKVLastPageLen]).GetInt({s});
  if (last < 0 || last > page_size) return -1;
  const int64_t length = (pages - 1) * page_size + last;
  const bool exist = ops::attention::PagesExist(indices, first * indices.stride(0), indices.stride(0), 0, length,
                                                page_size, cache.size(0));
  return exist ? length : -1;
}

int32_t Launch(const lz_kernel_args* args) {
  const View q(args->tensors[kQNope]), q_pe(args->tensors[kQPe]);
  const View ckv(args->tensors[kCkvCache]), kpe(args->tensors[kKpeCache]);
  const View indptr(args->tensors[kKVIndptr]), indices(args->tensors[kKVIndices]);
  const View out(args->tensors[kOutput]), lse_out(args->tensors[kLse]);
  const double scale = args->scalars[kSmScale].value.f;
  const int64_t d_ckv = q.size(2), d_kpe = q_pe.size(2);
  if (!ops::attention::OffsetsValid(indptr, indices.size(0))) return 1;
  for (int64_t s = 0; s < q.size(0); ++s) {
    if (Length(args, s) < 0) return 1;
  }
  ops::attention::AttentionRow row(d_ckv);
  for (int64_t s = 0; s < q.size(0); ++s) {
    const int64_t length = Length(args, s), first = indptr.GetInt({s}) * indices.stride(0);
    const ops::attention::PagedRows entries(ckv, indices, first, indices.stride(0));
    const ops::attention::PagedRows rotated(kpe, indices, first, indices.stride(0));
    for (int64_t h = 0; h < q.size(1); ++h) {
      const int64_t q_at = s * q.stride(0) + h * q.stride(1), pe_at = s * q_pe.stride(0) + h * q_pe.stride(1);
      const double lse = row.Attend(
          0, length, ops::attention::kHidden,
          [&](int64_t j) {
            return scale *
                   (Dot(q, q_at, ckv, entries.Offset(j), d_ckv) + Dot(q_pe, pe_at, kpe, rotated.Offset(j), d_kpe));
          },
          [&](int64_t j, int64_t c) { return ckv.Load(entries.Offset(j) + c * ckv.stride(2)); });
      for (int64_t c = 0; c < d_ckv; ++c) out.Set({s, h, c}, row.output()[size_t(c)]);
      if (lse_out.given()) lse_out.Set({s, h}, lse);
    }
  }
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "ref.attention.mla.decode.paged",
     .operation = "attention.mla.decode.paged",
     .dtypes = kFloats,
     .accepts = kAcceptsAll,
     .strides = Strides::kAny,
     .priority = 0,
     .deterministic = true,
     .reference = true,
     .launch = &Launch},
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
