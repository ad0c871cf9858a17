// Reference of activation.geglu: FP64, any strides, any float dtype; output may alias an input.
#include "ops/activation/geglu.h"

#include "core/view.h"
#include "ops/common/activation.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::activation_geglu;

int32_t Launch(const lz_kernel_args* args) {
  const View gate(args->tensors[kGate]), up(args->tensors[kUp]), out(args->tensors[kOutput]);
  const auto gelu = args->scalars[kApproximate].value.i == kTanh ? ops::activation::kGeluTanh : ops::activation::kGelu;
  for (int64_t row = 0; row < gate.rows(); ++row) {
    for (int64_t i = 0; i < gate.size(-1); ++i) {
      out.SetRow(row, i, ops::activation::Apply(gelu, gate.GetRow(row, i)) * up.GetRow(row, i));
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.activation.geglu", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
