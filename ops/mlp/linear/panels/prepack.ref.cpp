// Reference of mlp.linear.panels.prepack: value by value; any strides.
#include "ops/mlp/linear/panels/prepack.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear_panels_prepack;

int32_t Launch(const lz_kernel_args* args) {
  const View weight(args->tensors[kWeight]), out(args->tensors[kPanels]);
  const bool pairs = weight.dtype() == DType::kBF16;
  for (int64_t column = 0; column < weight.size(0); ++column) {
    for (int64_t i = 0; i < weight.size(1); ++i) {
      const int64_t place = PlaceInPanel(pairs, i, column % kPanel);
      out.Set({column / kPanel, place / kPanel, place % kPanel}, weight.Get({column, i}));
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.mlp.linear.panels.prepack", &Launch, kPanelTypes)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
