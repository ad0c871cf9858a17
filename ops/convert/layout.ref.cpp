// Reference of convert.layout: element by element as bytes; any strides, any dtype.
#include "ops/convert/layout.h"

#include <cstring>

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::convert_layout;

// Strides of one tensor for batch, sequence, head and dimension; in a layout without batch, for sequences of `length`.
std::array<int64_t, 4> Strides4(const View& t, int64_t layout, int64_t length) {
  const int at = IsBatched(layout) ? 1 : 0;
  const int64_t s = t.stride(HeadsFirst(layout) ? at + 1 : at), h = t.stride(HeadsFirst(layout) ? at : at + 1);
  return {IsBatched(layout) ? t.stride(0) : s * length, s, h, t.stride(-1)};
}

int32_t Launch(const lz_kernel_args* args) {
  const View in(args->tensors[kInput]), out(args->tensors[kOutput]);
  const int64_t source = args->scalars[kSource].value.i, target = args->scalars[kTarget].value.i;
  const View& batched = IsBatched(target) ? out : in;
  const int64_t layout = IsBatched(target) ? target : source;
  const int at = IsBatched(layout) ? 1 : 0;
  const int64_t b = at ? batched.size(0) : 1, d = batched.size(-1);
  const int64_t s = batched.size(HeadsFirst(layout) ? at + 1 : at), h = batched.size(HeadsFirst(layout) ? at : at + 1);
  const auto from = Strides4(in, source, s), to = Strides4(out, target, s);
  const int64_t bytes = ByteSize(in.dtype());
  for (int64_t ib = 0; ib < b; ++ib)
    for (int64_t is = 0; is < s; ++is)
      for (int64_t ih = 0; ih < h; ++ih)
        for (int64_t id = 0; id < d; ++id) {
          const int64_t read = ib * from[0] + is * from[1] + ih * from[2] + id * from[3];
          const int64_t write = ib * to[0] + is * to[1] + ih * to[2] + id * to[3];
          std::memcpy(out.data<char>() + write * bytes, in.data<char>() + read * bytes, size_t(bytes));
        }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.convert.layout", &Launch, kDTypesMoved)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
