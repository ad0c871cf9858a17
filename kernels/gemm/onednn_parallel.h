// A product by oneDNN's matmul in parts for the caller's threads, with dense outputs: for few rows parts of the
// columns, through the workspace; for many, parts of the rows.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/float_formats.h"
#include "core/kernel.h"
#include "kernels/gemm/onednn.h"
#include "kernels/gemm/parallel.h"
#include "ops/mlp/linear/panels.h"
#include "platform/device.h"

namespace lz::onednn {

struct Operands {
  const lz_tensor &input, &weights, &bias, &output;  // contiguous
  int64_t n, k;
  bool panels;  // of 64 columns; otherwise rows of k

  int64_t rows() const { return NumRows(output); }
  int64_t size() const { return ByteSize(DTypeOf(input)); }
};

inline constexpr int64_t kSmallM = 64;

inline uint64_t WorkspaceOf(const Operands& o) {
  return o.rows() > 1 && o.rows() <= kSmallM ? uint64_t(o.rows() * o.n * o.size()) : 0;
}

// Computes [num_rows, columns] of the output, from (row, column) on, into `to`; the columns before a part are
// whole panels.
inline bool MultiplyPart(const Operands& o, int64_t row, int64_t num_rows, int64_t column, int64_t columns, char* to) {
  const Shape shape = {.type = DTypeOf(o.input) == DType::kF32 ? kF32 : kBF16,
                       .rows = num_rows,
                       .columns = columns,
                       .k = o.k,
                       .bias = Given(o.bias),
                       .panels = o.panels};
  return Multiply(shape, {Data<char>(o.input) + row * o.k * o.size(), Data<char>(o.weights) + column * o.k * o.size(),
                          Given(o.bias) ? Data<char>(o.bias) + column * o.size() : nullptr, to});
}

inline int32_t MultiplyInParts(const lz_kernel_args* args, const Operands& o) {
  if (args->workspace_bytes < WorkspaceOf(o)) return 1;
  const int64_t rows = o.rows(), row_bytes = o.n * o.size();
  std::atomic<bool> failed = false;
  if (rows > kSmallM) {
    constexpr int64_t kRows = 32;
    ParallelFor(args, (rows + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
      const int64_t row = begin * kRows, num_rows = std::min(end * kRows, rows) - row;
      if (!MultiplyPart(o, row, num_rows, 0, o.n, Data<char>(o.output) + row * row_bytes)) failed = true;
    });
  } else if (rows > 0) {
    gemm::ForColumns(args, rows, o.n, o.k, [&](int64_t first, int64_t columns) {
      const bool dense = rows == 1 || columns == o.n;
      char* const out = Data<char>(o.output) + first * o.size();
      char* const part = dense ? out : static_cast<char*>(args->workspace) + rows * first * o.size();
      if (!MultiplyPart(o, 0, rows, first, columns, part)) failed = true;
      for (int64_t row = 0; !dense && row < rows; ++row) {
        std::memcpy(out + row * row_bytes, part + row * columns * o.size(), size_t(columns * o.size()));
      }
    });
  }
  return failed ? 1 : 0;
}

// Checks how matmul interprets one panel of weights in this dtype and order: for rows with a single 1 the product is
// the weights.
template <int kType, bool kPanels>
bool MultipliesRight() {
  using namespace ops::mlp_linear_panels;
  using T = std::conditional_t<kType == kF32, float, uint16_t>;
  const auto stored = [](int64_t value) {
    if constexpr (kType == kF32) return float(value);
    return T(FloatToBF16(float(value)));
  };
  const auto weight = [&](int64_t i, int64_t column) { return stored(i % 3 * kPanel + column); };  // exact in bf16
  std::array<T, kDepth * kDepth> x{};
  std::array<T, kDepth * kPanel> weights{}, out{};
  for (int64_t i = 0; i < kDepth; ++i) {
    x[size_t(i * kDepth + i)] = stored(1);
    for (int64_t column = 0; column < kPanel; ++column) {
      const int64_t place = kPanels ? PlaceInPanel(kType == kBF16, i, column) : column * kDepth + i;
      weights[size_t(place)] = weight(i, column);
    }
  }
  const Shape shape = {.type = kType, .rows = kDepth, .columns = kPanel, .k = kDepth, .bias = false, .panels = kPanels};
  if (!Multiply(shape, {x.data(), weights.data(), nullptr, out.data()})) return false;
  for (int64_t i = 0; i < kDepth * kPanel; ++i) {
    if (out[size_t(i)] != weight(i / kPanel, i % kPanel)) return false;
  }
  return true;
}

// Opens the library and checks the product of a row: the numbers of orders are part of the library's ABI.
template <int kType, bool kPanels>
const char* OpenFor(const char* path) {
  if (const char* why = Open(path)) return why;
  static const bool right = MultipliesRight<kType, kPanels>();
  return right ? nullptr : "its matmul does not compute this on this CPU";
}

// A kernel of one dtype with weights in rows or in panels.
template <int kType, bool kPanels>
constexpr KernelSpec Spec(std::string_view id, std::string_view operation, std::span<const Constraint> constraints,
                          lz_launch_fn launch, lz_workspace_fn workspace) {
  return {.id = id,
          .operation = operation,
          .dtypes = Mask(kType == kF32 ? DType::kF32 : DType::kBF16),
          .constraints = constraints,
          .accepts = kAcceptsAll,
          .priority = kLibraryPriority,
          .launch = launch,
          .workspace = workspace,
          .open = &OpenFor<kType, kPanels>};
}

}  // namespace lz::onednn
