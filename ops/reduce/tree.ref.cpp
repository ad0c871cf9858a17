// Reference of reduce.tree: level by level as in the definition, any strides, any float dtype.
#include "ops/reduce/tree.h"

#include <vector>

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::reduce_tree;

template <class Sum>
Sum Reduce(std::vector<Sum> level) {
  if (level.empty()) return 0;
  while (level.size() > 1) {
    const size_t pairs = level.size() / 2;
    for (size_t i = 0; i < pairs; ++i) level[i] = level[2 * i] + level[2 * i + 1];
    if (level.size() % 2 != 0) level[pairs] = level.back();
    level.resize((level.size() + 1) / 2);
  }
  return level[0];
}

template <class Sum>
int32_t Run(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), out(args->tensors[kOutput]);
  std::vector<Sum> parts(size_t(x.size(0)));
  for (int64_t row = 0; row < x.size(1); ++row) {
    for (int64_t i = 0; i < x.size(2); ++i) {
      for (size_t p = 0; p < parts.size(); ++p) parts[p] = Sum(x.Get({int64_t(p), row, i}));
      out.Set({row, i}, double(Reduce(parts)));
    }
  }
  return 0;
}

int32_t Launch(const lz_kernel_args* args) {
  return DTypeOf(args->tensors[kInput]) == DType::kF64 ? Run<double>(args) : Run<float>(args);
}

constexpr std::array kFamily = {ReferenceKernel("ref.reduce.tree", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
