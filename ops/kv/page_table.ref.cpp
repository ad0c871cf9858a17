// Reference of kv.page_table: any strides.
#include "ops/kv/page_table.h"

#include <algorithm>

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::kv_page_table;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const View indptr(t[kKVIndptr]), indices(t[kKVIndices]), last(t[kKVLastPageLen]), qo(t[kQOIndptr]);
  const View table(t[kBlockTables]), lens(t[kKVLens]), offsets(t[kQOOffsets]);
  const int64_t pages = args->scalars[kNumPages].value.i, size = args->scalars[kPageSize].value.i;
  const int64_t b = last.size(0), listed = indices.size(0);
  const auto offset = [&](int64_t s) { return std::clamp<int64_t>(indptr.GetInt({s}), 0, listed); };
  for (int64_t s = 0; s <= b; ++s) {
    const int64_t first = s < b ? offset(s) : 0;
    const int64_t n = s < b ? std::max<int64_t>(offset(s + 1) - first, 0) : 0;
    for (int64_t i = 0; i < listed; ++i) {
      const int64_t page = i < n ? indices.GetInt({first + i}) : 0;
      table.SetInt({s, i}, std::max<int64_t>(std::min(page, pages - 1), 0));
    }
    const int64_t length = n > 0 ? (n - 1) * size + std::min(last.GetInt({s}), size) : 0;
    lens.SetInt({s}, std::max<int64_t>(length, 0));
  }
  if (!qo.given()) return 0;
  const int64_t total = args->scalars[kTotalQ].value.i;
  int64_t most = 0;
  for (int64_t s = 0; s <= b; ++s) {
    most = std::max(most, std::min(qo.GetInt({s}), total));
    offsets.SetInt({s}, most);
  }
  offsets.SetInt({b + 1}, total);
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.kv.page_table", &Launch, kIndices)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
