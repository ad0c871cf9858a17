#include "pipeline/transform.h"

#include <algorithm>
#include <cstring>

#include "core/view.h"

namespace lz {
namespace {

char* First(const lz_tensor& t) { return static_cast<char*>(t.data) + t.byte_offset; }

// Calls row(offset of a in elements, offset of b in elements) for every innermost row of two tensors of equal shape.
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

// The last two axes of both tensors, with steps in bytes; a tensor with one axis is one row.
struct Plane {
  Plane(const lz_tensor& from, const lz_tensor& to) : item(ItemSize(from)) {
    const int32_t last = from.ndim - 1;
    if (last < 0) return;
    columns = from.shape[last], step = from.strides[last] * item, to_step = to.strides[last] * item;
    if (last == 0) return;
    rows = from.shape[last - 1], row_step = from.strides[last - 1] * item, to_row_step = to.strides[last - 1] * item;
  }
  int64_t item, rows = 1, columns = 1, step = item, to_step = item, row_step = 0, to_row_step = 0;
};

// Copies in tiles whose cache lines stay in L1, whichever of the two axes is dense in memory.
template <class Item>
void CopyPlane(const Plane& p, const char* from, char* to) {
  constexpr int64_t kTile = 16;
  for (int64_t row = 0; row < p.rows; row += kTile) {
    const int64_t row_end = std::min(p.rows, row + kTile);
    for (int64_t column = 0; column < p.columns; column += kTile) {
      const int64_t column_end = std::min(p.columns, column + kTile);
      for (int64_t r = row; r < row_end; ++r) {
        for (int64_t c = column; c < column_end; ++c) {
          std::memcpy(to + r * p.to_row_step + c * p.to_step, from + r * p.row_step + c * p.step, sizeof(Item));
        }
      }
    }
  }
}

void CopyPlane(const Plane& p, const char* from, char* to) {
  switch (p.item) {
    case 1: return CopyPlane<uint8_t>(p, from, to);
    case 2: return CopyPlane<uint16_t>(p, from, to);
    case 4: return CopyPlane<uint32_t>(p, from, to);
    default: return CopyPlane<uint64_t>(p, from, to);
  }
}

// Same shape, same dtype, any strides.
void Cast(const lz_tensor& from, const lz_tensor& to) {
  const View source(from), target(to);
  const int32_t last = from.ndim - 1;
  const int64_t n = from.ndim ? from.shape[last] : 1;
  const int64_t step = from.ndim ? from.strides[last] : 1, to_step = to.ndim ? to.strides[last] : 1;
  ForEachRow(from, to, [&](int64_t in, int64_t out) {
    for (int64_t i = 0; i < n; ++i) target.Store(out + i * to_step, source.Load(in + i * step));
  });
}

// Calls row(offset of the first element, elements, step) for every innermost row.
template <class Row>
void ForEachRow(const lz_tensor& t, Row&& row) {
  const int64_t n = t.ndim ? t.shape[t.ndim - 1] : 1, step = t.ndim ? t.strides[t.ndim - 1] : 1;
  ForEachRow(t, t, [&](int64_t offset, int64_t) { row(offset, n, step); });
}

void CastIndices(const lz_tensor& from, const lz_tensor& to) {
  const View source(from), target(to);
  int64_t next = 0;
  ForEachRow(from, [&](int64_t offset, int64_t n, int64_t step) {
    for (int64_t i = 0; i < n; ++i) target.StoreInt(next++, source.LoadInt(offset + i * step));
  });
}

}  // namespace

Status IndicesFit(const Request& r, size_t input) {
  const lz_tensor& t = r.tensors[input];
  if (DTypeOf(t) != DType::kI64) return {};
  const View view(t);
  int64_t outside = 0;
  ForEachRow(t, [&](int64_t offset, int64_t n, int64_t step) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t value = view.LoadInt(offset + i * step);
      if (value != int64_t{int32_t(value)}) [[unlikely]]
        outside = value;
    }
  });
  if (outside == 0) return {};
  return Status(StatusCode::kKernelFailed,
                {.field = std::string(r.op->name()) + ": " + std::string(r.op->input(input).name),
                 .wanted = "indices from -2^31 to 2^31 - 1",
                 .got = std::to_string(outside),
                 .fix = "no tensor has that many elements along an axis: check how the indices are made"});
}

void CopyStrided(const lz_tensor& from, const lz_tensor& to) {
  const Plane plane(from, to);
  if (plane.step == plane.item && plane.to_step == plane.item) {
    ForEachRow(from, to, [&](int64_t in, int64_t out) {
      std::memcpy(First(to) + out * plane.item, First(from) + in * plane.item, size_t(plane.columns * plane.item));
    });
    return;
  }
  lz_tensor planes_from = from, planes_to = to;  // their rows become planes
  planes_from.ndim = planes_to.ndim = std::max(1, from.ndim - 1);
  ForEachRow(planes_from, planes_to, [&](int64_t in, int64_t out) {
    CopyPlane(plane, First(from) + in * plane.item, First(to) + out * plane.item);
  });
}

uint64_t TransformBytes(const Transforms& transforms, const Request& r) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    if (transforms.inputs() >> i & 1) bytes += AlignWorkspace(InputBytes(r, i, transforms.DTypeAfter(r, i)));
  }
  for (size_t o = 0; o < r.op->num_outputs(); ++o) {
    if (transforms.outputs >> o & 1) bytes += AlignWorkspace(OutputBytes(r.outputs[o]));
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

Status TransformedTensors::Enter(const Transforms& transforms, const Request& r, char* memory) {
  request_ = &r;
  outputs_ = transforms.outputs;
  tensors_ = r.tensors;
  const size_t inputs = r.op->num_inputs();
  for (size_t i = 0; i < inputs; ++i) {
    if (!(transforms.inputs() >> i & 1)) continue;
    const DType dtype = transforms.DTypeAfter(r, i);
    PointTo(i, memory, dtype);
    if (transforms.indices >> i & 1) {
      LZ_RETURN_IF_ERROR(IndicesFit(r, i));
      CastIndices(r.tensors[i], tensors_[i]);
    } else {
      transforms.cast >> i & 1 ? Cast(r.tensors[i], tensors_[i]) : CopyStrided(r.tensors[i], tensors_[i]);
    }
    memory += AlignWorkspace(InputBytes(r, i, dtype));
  }
  for (size_t o = 0; o < r.op->num_outputs(); ++o) {
    if (!(outputs_ >> o & 1) || tensors_[inputs + o].ndim < 0) continue;
    PointTo(inputs + o, memory, DTypeOf(r.tensors[inputs + o]));
    memory += AlignWorkspace(uint64_t(NumBytes(tensors_[inputs + o])));
  }
  return {};
}

void TransformedTensors::Leave() const {
  for (size_t o = 0; o < request_->op->num_outputs(); ++o) {
    const size_t i = request_->op->num_inputs() + o;
    if (outputs_ >> o & 1 && tensors_[i].ndim >= 0) CopyStrided(tensors_[i], request_->tensors[i]);
  }
}

}  // namespace lz
