#include "pipeline/transform.h"

#include <cstring>

#include "core/view.h"

namespace lz {
namespace {

int64_t ItemSize(const lz_tensor& t) { return int64_t{t.dtype.bits} * t.dtype.lanes / 8; }
char* First(const lz_tensor& t) { return static_cast<char*>(t.data) + t.byte_offset; }

// Calls row(offset of a in elements, offset of b in elements) for every innermost row of two tensors of one shape.
template <class Row>
void ForEachRow(const lz_tensor& a, const lz_tensor& b, Row&& row) {
  if (NumElements(a) == 0) return;
  const int32_t last = a.ndim - 1;
  int64_t index[kMaxRank] = {};
  while (true) {
    int64_t in_a = 0, in_b = 0;
    for (int32_t d = 0; d < last; ++d) {
      in_a += index[d] * a.strides[d];
      in_b += index[d] * b.strides[d];
    }
    row(in_a, in_b);
    int32_t d = last - 1;
    while (d >= 0 && ++index[d] == a.shape[d]) index[d--] = 0;
    if (d < 0) return;
  }
}

// Same shape, same dtype, any strides.
void CopyStrided(const lz_tensor& from, const lz_tensor& to) {
  const int64_t item = ItemSize(from);
  const int32_t last = from.ndim - 1;
  const int64_t n = from.ndim ? from.shape[last] : 1;
  const int64_t step = from.ndim ? from.strides[last] * item : item, to_step = to.ndim ? to.strides[last] * item : item;
  ForEachRow(from, to, [&](int64_t in, int64_t out) {
    const char* source = First(from) + in * item;
    char* target = First(to) + out * item;
    if (step == item && to_step == item) {
      std::memcpy(target, source, size_t(n * item));
    } else {
      for (int64_t i = 0; i < n; ++i) std::memcpy(target + i * to_step, source + i * step, size_t(item));
    }
  });
}

void Cast(const lz_tensor& from, const lz_tensor& to) {
  const View source(from), target(to);
  const int32_t last = from.ndim - 1;
  const int64_t n = from.ndim ? from.shape[last] : 1;
  const int64_t step = from.ndim ? from.strides[last] : 1, to_step = to.ndim ? to.strides[last] : 1;
  ForEachRow(from, to, [&](int64_t in, int64_t out) {
    for (int64_t i = 0; i < n; ++i) target.Store(out + i * to_step, source.Load(in + i * step));
  });
}

}  // namespace

int64_t NumElements(const lz_tensor& t) {
  int64_t n = 1;
  for (int32_t i = 0; i < t.ndim; ++i) n *= t.shape[i];
  return n;
}
int64_t NumBytes(const lz_tensor& t) { return NumElements(t) * ItemSize(t); }

uint64_t InputBytes(const Transforms& transforms, const Request& r, size_t input) {
  const lz_tensor& t = r.tensors[input];
  const bool cast = transforms.cast >> input & 1;
  return uint64_t(NumElements(t) * (cast ? ByteSize(r.promoted) : ItemSize(t)));
}

uint64_t TransformBytes(const Transforms& transforms, const Request& r) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    if ((transforms.contiguous | transforms.cast) >> i & 1) bytes += AlignWorkspace(InputBytes(transforms, r, i));
  }
  for (size_t o = 0; o < r.op->num_outputs(); ++o) {
    const OutputShape& shape = r.outputs[o];
    if (!(transforms.outputs >> o & 1) || shape.ndim < 0) continue;
    int64_t n = ByteSize(shape.dtype);
    for (int32_t d = 0; d < shape.ndim; ++d) n *= shape.shape[d];
    bytes += AlignWorkspace(uint64_t(n));
  }
  return bytes;
}

void TransformedTensors::PointTo(size_t i, char* memory, DType dtype) {
  lz_tensor& t = tensors_[i];
  t.data = memory;
  t.byte_offset = 0;
  t.dtype = {Info(dtype).dlpack_code, Info(dtype).bits, Info(dtype).lanes};
  int64_t stride = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    strides_[i][size_t(d)] = stride;
    stride *= t.shape[d];
  }
  t.strides = strides_[i].data();
}

void TransformedTensors::Enter(const Transforms& transforms, const Request& r, char* memory) {
  request_ = &r;
  outputs_ = transforms.outputs;
  tensors_ = r.tensors;
  const size_t inputs = r.op->num_inputs();
  for (size_t i = 0; i < inputs; ++i) {
    const bool cast = transforms.cast >> i & 1;
    if (!cast && !(transforms.contiguous >> i & 1)) continue;
    PointTo(i, memory, cast ? r.promoted : DTypeOf(r.tensors[i]));
    cast ? Cast(r.tensors[i], tensors_[i]) : CopyStrided(r.tensors[i], tensors_[i]);
    memory += AlignWorkspace(InputBytes(transforms, r, i));
  }
  for (size_t o = 0; o < r.op->num_outputs(); ++o) {
    if (!(outputs_ >> o & 1) || tensors_[inputs + o].ndim < 0) continue;
    PointTo(inputs + o, memory, DTypeOf(r.tensors[inputs + o]));
    memory += AlignWorkspace(uint64_t(NumBytes(tensors_[inputs + o])));
  }
}

void TransformedTensors::Leave() const {
  for (size_t o = 0; o < request_->op->num_outputs(); ++o) {
    const size_t i = request_->op->num_inputs() + o;
    if (outputs_ >> o & 1 && tensors_[i].ndim >= 0) CopyStrided(tensors_[i], request_->tensors[i]);
  }
}

}  // namespace lz
