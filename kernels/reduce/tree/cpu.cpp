// The fixed tree of reduce.tree, CPU: one pass over the partials, a binary counter of subtrees for each run of columns.
//   input [n, rows, hidden]  f32|f16|bf16, last axis dense     output [rows, hidden]  any float dtype, last axis dense
// Workspace: none. Deterministic: bits of the definition. Source: own.
#include <algorithm>
#include <array>

#include "core/float_formats.h"
#include "core/view.h"
#include "kernels/launch.h"
#include "kernels/spec.h"
#include "ops/reduce/tree.h"

namespace {
using namespace lz;
using namespace lz::ops::reduce_tree;

constexpr int64_t kColumns = 256;  // columns of one run: the subtrees of 2^12 partials stay in the L1 cache
using Run = std::array<float, kColumns>;

void Load(const View& x, int64_t at, int64_t count, Run& run) {
  switch (x.dtype()) {
    case DType::kF32: std::copy_n(x.data<const float>() + at, count, run.data()); return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) run[size_t(i)] = BF16ToFloat(x.data<const uint16_t>()[at + i]);
      return;
    default:
      for (int64_t i = 0; i < count; ++i) run[size_t(i)] = F16ToFloat(x.data<const uint16_t>()[at + i]);
  }
}

// left + right, in place of left.
void Add(Run& left, const Run& right) {
  for (size_t i = 0; i < left.size(); ++i) left[i] += right[i];
}

// Columns [first, first + count) of one row. Subtrees of 2^j partials are on a stack, the largest at its bottom.
void SumRun(const View& x, int64_t row, int64_t first, int64_t count, const View& out) {
  std::array<Run, 64> stack;
  int64_t depth = 0;
  const int64_t n = x.size(0);
  for (int64_t part = 0; part < n; ++part) {
    stack[size_t(depth)] = {};
    Load(x, part * x.stride(0) + row * x.stride(1) + first, count, stack[size_t(depth++)]);
    for (int64_t bits = part + 1; bits % 2 == 0; bits /= 2, --depth)
      Add(stack[size_t(depth - 2)], stack[size_t(depth - 1)]);
  }
  for (; depth > 1; --depth) Add(stack[size_t(depth - 2)], stack[size_t(depth - 1)]);
  for (int64_t i = 0; i < count; ++i)
    out.Store(row * out.stride(0) + first + i, n > 0 ? double(stack[0][size_t(i)]) : 0.0);
}

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), out(args->tensors[kOutput]);
  const int64_t rows = out.size(0), hidden = out.size(1), runs = (hidden + kColumns - 1) / kColumns;
  // 16k additions take about 4 us on one core: fewer do not pay for waking another thread.
  ParallelFor(args, rows * runs, 16384 / (x.size(0) * kColumns + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % runs * kColumns;
      SumRun(x, i / runs, first, std::min(kColumns, hidden - first), out);
    }
  });
  return 0;
}

constexpr std::array kFamily = {CpuSpec("cpu.reduce.tree", &Launch, {.accepts = kAcceptsAll})};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
