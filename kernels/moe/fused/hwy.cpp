// Mixture of experts, CPU SIMD: the rows of each expert together, so that its weights are read once for a block of
// tokens.
//   input [..., d], output [..., m]  f32|bf16     weights and biases as in ops/moe/fused.h, dtype of input
//   expert_ids [..., k]  i32|i64     expert_weights [..., k]  any float dtype; last axes dense
// Workspace: order of the rows, hidden rows, FP32 sums. Deterministic: a token's experts are summed in ascending order.
// Source: own. FP32 sums as in hwy.mlp.linear.gemm; g and u stay in FP32, h is rounded to the dtype.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/fused/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/mlp/block.h"
#include "kernels/moe/fused/sizes.h"
#include "ops/moe/fused.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops::moe_fused;

// One token's share of an expert.
struct Share {
  int64_t token;
  float weight;
};

// Shares of tokens [first, first + count) sorted by expert (counting sort, stable): starts[e] is expert e's first.
void SortShares(const lz_kernel_args* args, int64_t first, int64_t count, int64_t experts, int64_t* starts,
                Share* shares) {
  const View ids(args->tensors[kExpertIds]), weights(args->tensors[kExpertWeights]);
  const int64_t k = ids.size(-1);
  const auto id_of = [&](int64_t token, int64_t j) { return ids.LoadInt(ids.RowOffset(token) + j * ids.stride(-1)); };
  const auto for_each = [&](const auto& body) {
    for (int64_t token = first; token < first + count; ++token) {
      for (int64_t j = 0; j < k; ++j) {
        const int64_t e = id_of(token, j);
        if (e >= 0 && e < experts) body(token, j, e);
      }
    }
  };
  std::fill_n(starts, experts + 1, int64_t{0});
  for_each([&](int64_t, int64_t, int64_t e) { ++starts[e + 1]; });
  for (int64_t e = 0; e < experts; ++e) starts[e + 1] += starts[e];
  for_each([&](int64_t token, int64_t j, int64_t e) {
    shares[starts[e]++] = {token - first, float(weights.GetRow(token, j))};
  });
  for (int64_t e = experts; e > 0; --e) starts[e] = starts[e - 1];  // the ends became the next one's starts
  starts[0] = 0;
}

template <class T>
struct Memory {
  Memory(const lz_kernel_args* args, const MoeSizes& s)
      : sums(static_cast<float*>(args->workspace)),
        pointers(reinterpret_cast<const T**>(sums + s.tokens * s.m + (s.tokens * s.m) % 2)),
        starts(reinterpret_cast<int64_t*>(pointers + kMlpChunk)),
        shares(reinterpret_cast<Share*>(starts + s.experts + 1)),
        scales(reinterpret_cast<float*>(shares + s.tokens * s.k)),
        h(reinterpret_cast<T*>(scales + kMlpChunk)) {}
  float* sums;         // [tokens, m]
  const T** pointers;  // rows of a product
  int64_t* starts;
  Share* shares;
  float* scales;
  T* h;  // [chunk, n]
};

// Adds an expert's outputs for `count` of its shares to the sums of their tokens.
template <class T>
void AddExpert(const lz_kernel_args* args, const MoeSizes& s, const HiddenRows<T>& hidden, const Product<T>& down,
               const Share* shares, int64_t count, int64_t first_token, const RowOffsets& x_row, Memory<T>& memory) {
  const bool of_input = args->scalars[kWeighted].value.i == kOfInput;
  const lz_tensor& input = args->tensors[kInput];
  const bool scaled = of_input && input.shape[input.ndim - 1] > 0;  // an empty row has nothing to weight, even by NaN
  for (int64_t i = 0; i < count; ++i) {
    memory.pointers[i] = Data<const T>(args->tensors[kInput]) + x_row[first_token + shares[i].token];
    memory.scales[i] = shares[i].weight;
  }
  hidden.Run(args, memory.pointers, scaled ? memory.scales : nullptr, count, memory.h);
  for (int64_t i = 0; i < count; ++i) memory.pointers[i] = memory.h + i * s.n;
  ForBlocks<T>(args, count, s.m, s.n, [&](int64_t row, int height, int64_t first, int64_t columns) {
    BlockSums sums;
    down.Block(memory.pointers + row, nullptr, height, first, columns, sums);
    for (int i = 0; i < height; ++i) {
      const float weight = of_input ? 1.0f : shares[row + i].weight;
      float* total = memory.sums + shares[row + i].token * s.m + first;
      for (int64_t c = 0; c < columns; ++c) total[c] += weight * sums[i * linear::kBlockColumns + c];
    }
  });
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const MoeSizes s(args);
  const lz_tensor& out = args->tensors[kOutput];
  const int64_t tokens = NumRows(out);
  const RowOffsets x_row(args->tensors[kInput]), out_row(out);
  Memory<T> memory(args, s);
  for (int64_t base = 0; base < tokens; base += s.tokens) {
    const int64_t count = std::min(s.tokens, tokens - base);
    SortShares(args, base, count, s.experts, memory.starts, memory.shares);
    std::fill_n(memory.sums, count * s.m, 0.0f);
    for (int64_t e = 0; e < s.experts; ++e) {
      if (memory.starts[e] == memory.starts[e + 1]) continue;
      const HiddenRows<T> hidden(&args->tensors[kGateWeight], &args->scalars[kActivation], e);
      const Product<T> down(args->tensors[kDownWeight], args->tensors[kDownBias], e, 0, 1, s.m);
      for (int64_t i = memory.starts[e]; i < memory.starts[e + 1]; i += kMlpChunk) {
        const int64_t rows = std::min(kMlpChunk, memory.starts[e + 1] - i);
        AddExpert(args, s, hidden, down, memory.shares + i, rows, base, x_row, memory);
      }
    }
    for (int64_t t = 0; t < count; ++t) {
      MapRow(
          Data<T>(out) + out_row[base + t], s.m, [](auto, auto v) HWY_ATTR { return v; }, memory.sums + t * s.m);
    }
  }
  return 0;
}

int32_t Launch(const lz_kernel_args* args) {
  return DTypeOf(args->tensors[kInput]) == DType::kF32 ? Run<float>(args) : Run<BF16>(args);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Launch);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }

uint64_t Workspace(const lz_kernel_args* args) {
  const MoeSizes s(args);
  const int64_t rows = std::min(kMlpChunk, s.tokens * s.k);
  return uint64_t((s.tokens * s.m + 1) * 4 + kMlpChunk * 12 + (s.experts + 1) * 8 + s.tokens * s.k * 16 +
                  rows * s.n * ByteSize(DTypeOf(args->tensors[0])));
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.moe.fused",
     .operation = "moe.fused",
     .dtypes = kF32BF16,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 60,
     .deterministic = true,
     .launch = &LaunchBest,
     .workspace = &Workspace},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
