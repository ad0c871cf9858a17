// Reference of mlp.linear.panels: FP64 sums; any strides.
#include "ops/mlp/linear/panels.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear_panels;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), panels(args->tensors[kPanels]), bias(args->tensors[kBias]);
  const View out(args->tensors[kOutput]);
  const int64_t k = panels.size(1), n = out.size(-1), rows = n > 0 ? out.rows() : 0;
  const bool pairs = panels.dtype() == DType::kBF16;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = x.RowOffset(row);
    for (int64_t column = 0; column < n; ++column) {
      double sum = bias.given() ? bias.Get({column}) : 0.0;
      for (int64_t i = 0; i < k; ++i) {
        const int64_t place = PlaceInPanel(pairs, i, column % kPanel);
        sum += x.Load(from + i * x.stride(-1)) * panels.Get({column / kPanel, place / kPanel, place % kPanel});
      }
      out.SetRow(row, column, sum);
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.mlp.linear.panels", &Launch, kPanelTypes)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
