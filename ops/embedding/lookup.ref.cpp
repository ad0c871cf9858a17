// Reference of embedding.lookup: element by element, any strides, any dtype; output must not alias an input.
#include "ops/embedding/lookup.h"

#include <cstring>

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::embedding_lookup;

// Element offset of the index-th id in row-major order of all axes.
int64_t IdOffset(const View& ids, int64_t index) {
  int64_t offset = 0;
  for (int axis = ids.ndim() - 1; axis >= 0; --axis) {
    offset += (index % ids.size(axis)) * ids.stride(axis);
    index /= ids.size(axis);
  }
  return offset;
}

int32_t Launch(const lz_kernel_args* args) {
  const View ids(args->tensors[kInput]), table(args->tensors[kWeight]), out(args->tensors[kOutput]);
  const int64_t vocab = table.size(0), hidden = table.size(1), size = ByteSize(table.dtype());
  for (int64_t row = 0; row < ids.numel(); ++row) {
    const int64_t id = ids.LoadInt(IdOffset(ids, row));
    if (id < 0 || id >= vocab) return kIdOutOfRange;
    for (int64_t i = 0; i < hidden; ++i) {
      const int64_t from = id * table.stride(0) + i * table.stride(1);
      const int64_t to = out.RowOffset(row) + i * out.stride(-1);
      std::memcpy(out.data<char>() + to * size, table.data<char>() + from * size, size_t(size));
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.embedding.lookup", &Launch, kIndices)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
