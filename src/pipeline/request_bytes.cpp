#include "pipeline/request_bytes.h"

namespace lz {
namespace {
int64_t ItemSize(const lz_tensor& t) { return int64_t{t.dtype.bits} * t.dtype.lanes / 8; }
}  // namespace

int64_t NumElements(const lz_tensor& t) {
  int64_t n = 1;
  for (int32_t i = 0; i < t.ndim; ++i) n *= t.shape[i];
  return n;
}
int64_t NumBytes(const lz_tensor& t) { return NumElements(t) * ItemSize(t); }

uint64_t InputBytes(const Request& r, size_t input, DType dtype) {
  return uint64_t(NumElements(r.tensors[input]) * ByteSize(dtype));
}

uint64_t OutputBytes(const OutputShape& output) {
  if (output.ndim < 0) return 0;
  int64_t n = ByteSize(output.dtype);
  for (int32_t d = 0; d < output.ndim; ++d) n *= output.shape[d];
  return uint64_t(n);
}

uint64_t CallBytes(const Request& r) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    if (r.tensors[i].ndim >= 0) bytes += uint64_t(NumBytes(r.tensors[i]));
  }
  for (size_t o = 0; o < r.op->num_outputs(); ++o) bytes += OutputBytes(r.outputs[o]);
  return bytes;
}

}  // namespace lz
