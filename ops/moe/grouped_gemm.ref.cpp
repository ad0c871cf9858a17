// Reference of moe.grouped_gemm: FP64 accumulation, any strides, any float dtype.
#include "ops/moe/grouped_gemm.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::moe_grouped_gemm;

bool OffsetsAreValid(const View& offsets, int64_t rows) {
  int64_t last = 0;
  for (int64_t e = 0; e < offsets.size(0); ++e) {
    const int64_t offset = offsets.GetInt({e});
    if (offset < last || offset > rows) return false;
    last = offset;
  }
  return true;
}

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), w(args->tensors[kWeight]), offsets(args->tensors[kOffsets]);
  const View bias(args->tensors[kBias]), out(args->tensors[kOutput]);
  if (!OffsetsAreValid(offsets, x.size(0))) return LZ_LAUNCH_INVALID_DATA;
  for (int64_t r = 0; r < out.size(0); ++r) {
    for (int64_t j = 0; j < out.size(1); ++j) out.Set({r, j}, 0);
  }
  for (int64_t e = 0; e < w.size(0); ++e) {
    for (int64_t r = offsets.GetInt({e}); r < offsets.GetInt({e + 1}); ++r) {
      for (int64_t j = 0; j < w.size(1); ++j) {
        double sum = bias.given() ? bias.Get({e, j}) : 0.0;
        for (int64_t i = 0; i < w.size(2); ++i) sum += x.Get({r, i}) * w.Get({e, j, i});
        out.Set({r, j}, sum);
      }
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.moe.grouped_gemm", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
