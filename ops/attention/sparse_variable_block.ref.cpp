// Reference of attention.sparse.variable_block: FP64, any strides, any float dtype.
#include "ops/attention/sparse_variable_block.h"

#include "core/kernel.h"
#include "ops/common/attention_math.h"

namespace {
using namespace lz;
using namespace lz::ops::attention_sparse_variable_block;
using ops::attention::Dot;
using ops::attention::kHidden;

// The block of each KV head that an item belongs to: entry g * items + i. Returns false if the sizes do not add up
// to `items`.
bool BlocksOf(const View& sizes, int64_t items, std::vector<int64_t>& block) {
  for (int64_t g = 0; g < sizes.size(0); ++g) {
    for (int64_t b = 0; b < sizes.size(1); ++b) {
      const int64_t n = sizes.GetInt({g, b});
      if (n < 0 || n > (g + 1) * items - int64_t(block.size())) return false;
      block.insert(block.end(), size_t(n), b);
    }
    if (int64_t(block.size()) != (g + 1) * items) return false;
  }
  return true;
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const View q(t[kQ]), k(t[kK]), v(t[kV]), mask(t[kBlockMask]), out(t[kOutput]), lse_out(t[kLse]);
  const int64_t m = q.size(0), n = k.size(0), h_q = q.size(1), h_kv = k.size(1);
  std::vector<int64_t> row_block, col_block;
  if (!BlocksOf(View(t[kRowSizes]), m, row_block) || !BlocksOf(View(t[kColSizes]), n, col_block)) return 1;
  ops::attention::AttendRows(
      {.scale = args->scalars[kSmScale].value.f}, {m, n, h_q, h_kv, v.size(2)},
      [&](int64_t i, int64_t h, int64_t j, int64_t kv) {
        return Dot(q, i * q.stride(0) + h * q.stride(1), k, j * k.stride(0) + kv * k.stride(1), q.size(2));
      },
      [&](int64_t h, int64_t i, int64_t j) {
        const int64_t g = h / (h_q / h_kv);
        return mask.GetInt({g, row_block[size_t(g * m + i)], col_block[size_t(g * n + j)]}) ? 0.0 : kHidden;
      },
      [&](int64_t j, int64_t kv, int64_t c) {
        return v.Get({j, kv, c});
      },
      [&](int64_t i, int64_t h, ops::attention::AttentionRow& row, double lse) {
        for (int64_t c = 0; c < v.size(2); ++c) out.Set({i, h, c}, row.output()[size_t(c)]);
        if (lse_out.given()) lse_out.Set({i, h}, lse);
      });
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.attention.sparse.variable_block", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
