// Reference of mlp.linear.prepack: byte by byte; any strides.
#include "ops/mlp/linear/prepack.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear_prepack;

int32_t Launch(const lz_kernel_args* args) {
  const View weight(args->tensors[kWeight]), out(args->tensors[kPacked]);
  const auto code = [&](int64_t row, int64_t column) {
    return weight.GetInt({row, column / 2}) >> (column % 2 * 4) & 15;
  };
  for (int64_t row = 0; row < out.size(0); ++row) {
    for (int64_t i = 0; i < out.size(1); ++i) {
      const int64_t column = i / kGroupBytes * 32 + i % kGroupBytes;
      out.SetInt({row, i}, code(row, column) | code(row, column + 16) << 4);
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.mlp.linear.prepack", &Launch, Mask(DType::kU8))};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
