#include "pipeline/request_bytes.h"

namespace lz {
uint64_t InputBytes(const BoundCall& r, size_t input, DType dtype) {
  return uint64_t(NumElements(r.tensors[input]) * ByteSize(dtype));
}

uint64_t OutputBytes(const OutputShape& output) {
  if (output.ndim < 0) return 0;
  int64_t n = ByteSize(output.dtype);
  for (int32_t d = 0; d < output.ndim; ++d) n *= output.shape[d];
  return uint64_t(n);
}

uint64_t CallBytes(const BoundCall& r) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) bytes += uint64_t(NumBytes(r.tensors[i]));
  for (size_t o = 0; o < r.op->num_outputs(); ++o) bytes += OutputBytes(r.outputs[o]);
  return bytes;
}

}  // namespace lz
