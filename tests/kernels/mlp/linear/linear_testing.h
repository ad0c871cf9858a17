// Calls of mlp.linear's kernels on memory that faults right behind its last element, compared with the FP64 reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/float_formats.h"
#include "core/kernel.h"
#include "core/view.h"
#include "ops/mlp/linear.h"
#include "tests/kernels/guarded_bytes.h"

namespace lz::kernels {
extern const KernelFamily ops_mlp_linear_ref;
}  // namespace lz::kernels

namespace lz::testing {

// A matrix [rows, columns] with `pad` unused elements behind each row but the last, or, if it is stored by columns,
// behind each column but the last.
class Matrix {
 public:
  Matrix(DType type, int64_t rows, int64_t columns, int64_t pad = 0, bool column_major = false)
      : shape_{rows, columns},
        strides_{column_major ? 1 : columns + pad, column_major ? rows + pad : 1},
        bytes_(Elements(column_major ? columns : rows, column_major ? rows : columns, pad) * size_t(ByteSize(type))),
        memory_(bytes_) {
    const DTypeInfo& info = Info(type);
    tensor_ = {.data = memory_.data(),
               .device = {1, 0},
               .ndim = 2,
               .dtype = {info.dlpack_code, info.bits, info.lanes},
               .shape = shape_,
               .strides = strides_,
               .byte_offset = 0};
    std::memset(memory_.data(), 0x5a, bytes_);
  }
  Matrix& Fill(std::mt19937& random) {
    std::normal_distribution<double> normal;
    const View view(tensor_);
    for (int64_t r = 0; r < shape_[0]; ++r)
      for (int64_t c = 0; c < shape_[1]; ++c) view.Set({r, c}, normal(random));
    return *this;
  }
  lz_tensor tensor() const { return tensor_; }
  lz_tensor row() const {  // of [1, n]: the tensor [n]
    lz_tensor t = tensor_;
    t.ndim = 1;
    ++t.shape;
    ++t.strides;
    return t;
  }
  View view() const { return View(tensor_); }
  std::string bytes() const { return std::string(memory_.data(), bytes_); }

 private:
  static size_t Elements(int64_t lines, int64_t each, int64_t pad) {
    return size_t(lines == 0 ? 0 : (lines - 1) * (each + pad) + each);
  }

  int64_t shape_[2], strides_[2];
  size_t bytes_;
  GuardedBytes memory_;
  lz_tensor tensor_;
};

struct LinearCall {
  DType type = DType::kF32;
  int64_t rows = 1, n = 1, k = 1;
  bool bias = false;
  int64_t pad = 0;            // of input, weight and output rows
  int64_t parts = 1;          // of the parallel-for
  bool column_major = false;  // the weight
};

// Splits into `parts` parts, run in turn: what a kernel computes must not depend on it.
inline void RunParts(void* self, int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
  const int64_t parts = *static_cast<int64_t*>(self), each = std::max((end - begin + parts - 1) / parts, int64_t{1});
  for (int64_t i = begin; i < end; i += each) body(i, std::min(i + each, end), context);
}

struct LinearData {
  explicit LinearData(const LinearCall& call)
      : random(unsigned(call.rows * 7919 + call.n * 31 + call.k)),
        input(call.type, call.rows, call.k, call.pad),
        weight(call.type, call.n, call.k, call.pad, call.column_major),
        bias(call.type, 1, call.n),
        output(call.type, call.rows, call.n, call.pad),
        wanted(DType::kF64, call.rows, call.n) {
    input.Fill(random);
    weight.Fill(random);
    bias.Fill(random);
  }
  int32_t Run(const KernelSpec& kernel, const LinearCall& call, const Matrix& out) {
    return Run(kernel, call, out, input.tensor());
  }
  int32_t Run(const KernelSpec& kernel, const LinearCall& call, const Matrix& out, const lz_tensor& x) {
    return Run(kernel, call, out, x, weight.tensor());
  }
  int32_t Run(const KernelSpec& kernel, const LinearCall& call, const Matrix& out, const lz_tensor& x,
              const lz_tensor& w) {
    const lz_tensor none = {.ndim = -1};
    const lz_tensor tensors[] = {x, w, call.bias ? bias.row() : none, out.tensor()};
    int64_t parts = call.parts;
    const lz_parallel parallel = {&RunParts, &parts, int32_t(parts)};
    const int64_t axes[] = {call.k, call.n};
    lz_kernel_args args = {.size = sizeof(lz_kernel_args), .tensors = tensors, .axes = axes, .parallel = &parallel};
    args.workspace_bytes = kernel.workspace ? kernel.workspace(&args) : 0;
    const GuardedBytes workspace(size_t(args.workspace_bytes + 63) / 64 * 64);  // 64-byte aligned
    args.workspace = workspace.data();
    return kernel.launch(&args);
  }

  std::mt19937 random;
  Matrix input, weight, bias, output, wanted;
};

// Largest error relative to the largest value of its row (at least 1: the inputs are N(0,1), and a row of one or two
// columns may cancel to almost nothing), or infinity where only one of two is NaN.
inline double RowMaxError(const View& got, const View& wanted) {
  double worst = 0;
  for (int64_t r = 0; r < wanted.size(0); ++r) {
    double largest = 1, error = 0;
    for (int64_t c = 0; c < wanted.size(1); ++c) {
      const double w = wanted.Get({r, c}), g = got.Get({r, c});
      if (std::isnan(w) || std::isnan(g)) {
        if (std::isnan(w) != std::isnan(g)) return INFINITY;
        continue;
      }
      largest = std::max(largest, std::fabs(w));
      error = std::max(error, std::fabs(w - g));
    }
    worst = std::max(worst, error / largest);
  }
  return worst;
}

inline void ExpectLikeReference(const KernelSpec& kernel, const LinearCall& call) {
  SCOPED_TRACE(std::string(Info(call.type).name) + " rows " + std::to_string(call.rows) + " n " +
               std::to_string(call.n) + " k " + std::to_string(call.k) + (call.bias ? " bias" : "") + " pad " +
               std::to_string(call.pad));
  LinearData data(call);
  ASSERT_EQ(data.Run(kernel, call, data.output), 0);
  ASSERT_EQ(data.Run(kernels::ops_mlp_linear_ref[0], call, data.wanted), 0);
  const Tolerance tolerance = ops::mlp_linear::kContract.tolerance;
  EXPECT_LE(RowMaxError(data.output.view(), data.wanted.view()),
            call.type == DType::kF32 ? tolerance.f32 : tolerance.bf16);
}

// The same bits in two to five parts as in one.
inline void ExpectSameInParts(const KernelSpec& kernel, LinearCall call) {
  LinearData data(call);
  ASSERT_EQ(data.Run(kernel, call, data.output), 0);
  const std::string alone = data.output.bytes();
  for (call.parts = 2; call.parts <= 5; ++call.parts) {
    Matrix again(call.type, call.rows, call.n);
    ASSERT_EQ(data.Run(kernel, call, again), 0);
    EXPECT_EQ(again.bytes(), alone) << call.parts << " parts";
  }
}

}  // namespace lz::testing
