// Reference of attention.sparse.block: FP64, any strides, any float dtype.
#include "ops/attention/sparse_block.h"

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_sparse_block;

bool BlocksExist(const View& indptr, const View& indices, int64_t num_blocks) {
  if (!ops::attention::OffsetsValid(indptr, indices.size(0))) return false;
  for (int64_t e = 0; e < indptr.GetInt({indptr.size(0) - 1}); ++e) {
    if (indices.GetInt({e}) < 0 || indices.GetInt({e}) >= num_blocks) return false;
  }
  return true;
}

int32_t Launch(const lz_kernel_args* args) {
  const View q(args->tensors[kQ]), k(args->tensors[kK]), v(args->tensors[kV]);
  const View indptr(args->tensors[kIndptr]), indices(args->tensors[kBlockIndices]);
  const View out(args->tensors[kOutput]), lse_out(args->tensors[kLse]);
  const int64_t r = args->scalars[kR].value.i, c = args->scalars[kC].value.i;
  const double scale = args->scalars[kSmScale].value.f;
  const int64_t h_q = q.size(1), d_qk = q.size(2), h_kv = k.size(1), d_v = v.size(2);
  if (!BlocksExist(indptr, indices, k.size(0) / c)) return 1;
  ops::attention::AttentionRow row(d_v);
  for (int64_t i = 0; i < q.size(0); ++i) {
    const int64_t first = indptr.GetInt({i / r}), listed = indptr.GetInt({i / r + 1}) - first;
    const auto key = [&](int64_t e) { return indices.GetInt({first + e / c}) * c + e % c; };
    for (int64_t h = 0; h < h_q; ++h) {
      const int64_t kv = h / (h_q / h_kv), q_at = i * q.stride(0) + h * q.stride(1);
      const double lse = row.Attend(
          0, listed * c, ops::attention::kHidden,
          [&](int64_t e) {
            const int64_t k_at = key(e) * k.stride(0) + kv * k.stride(1);
            return scale * ops::attention::Dot(q, q_at, k, k_at, d_qk);
          },
          [&](int64_t e, int64_t x) {
            return v.Get({key(e), kv, x});
          });
      for (int64_t x = 0; x < d_v; ++x) out.Set({i, h, x}, row.output()[size_t(x)]);
      if (lse_out.given()) lse_out.Set({i, h}, lse);
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.attention.sparse.block", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
