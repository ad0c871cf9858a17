// Mixture of experts, CPU SIMD: the rows of each expert are processed together, so that its weights are read once per
// block of tokens; a token's experts are summed in ascending order. The kernel defines what an expert computes:
//   Expert(args, e)                               the weights of expert e
//   Hidden(args, x, scales, count, packed, h)     h [count, n], of Intermediate<T>, of rows x[0 .. count), each times
//                                                 its scale (nullptr: 1)
//   Down(args, h, count, packed, body)            body(row, first, columns, outputs) for each part of the outputs
//   PackedFloats(args)                            size of `packed` in floats
// Include only from files that Highway compiles per target.
#if defined(LZ_KERNELS_MOE_HWY_EXPERTS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_MOE_HWY_EXPERTS_H_
#undef LZ_KERNELS_MOE_HWY_EXPERTS_H_
#else
#define LZ_KERNELS_MOE_HWY_EXPERTS_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/moe/sizes.h"
#include "kernels/rows.h"
#include "ops/moe/fused.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::moe {
using namespace lz::ops::moe_fused;

// One token's share of an expert.
struct Share {
  int64_t token;
  float weight;
};

// Shares of tokens [first, first + count) sorted by expert (counting sort, stable): starts[e] is the first of expert e.
inline void SortShares(const lz_kernel_args* args, int64_t first, int64_t count, int64_t experts, int64_t* starts,
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
  for (int64_t e = experts; e > 0; --e) starts[e] = starts[e - 1];  // the end of each became the start of the next
  starts[0] = 0;
}

template <class T>
struct Memory {
  Memory(const lz_kernel_args* args, const MoeSizes& s, int64_t packed_floats)
      : sums(static_cast<float*>(args->workspace)),
        inputs(reinterpret_cast<const T**>(sums + s.tokens * s.m + (s.tokens * s.m) % 2)),
        hidden(reinterpret_cast<const Intermediate<T>**>(inputs + kHiddenTileRows)),
        starts(reinterpret_cast<int64_t*>(hidden + kHiddenTileRows)),
        shares(reinterpret_cast<Share*>(starts + s.experts + 1)),
        scales(reinterpret_cast<float*>(shares + s.tokens * s.k)),
        packed(scales + kHiddenTileRows),
        h(reinterpret_cast<Intermediate<T>*>(packed + packed_floats)) {}
  float* sums;       // [tokens, m]
  const T** inputs;  // rows of the products
  const Intermediate<T>** hidden;
  int64_t* starts;
  Share* shares;
  float* scales;
  float* packed;       // packed rows of a product
  Intermediate<T>* h;  // [chunk, n]
};

// Adds an expert's outputs for `count` of its shares to the sums of their tokens.
template <class T, class Expert>
void AddExpert(const lz_kernel_args* args, const MoeSizes& s, const Expert& expert, const Share* shares, int64_t count,
               int64_t first_token, const RowOffsets& x_row, Memory<T>& memory) {
  const bool of_input = args->scalars[kWeighted].value.i == kOfInput;
  const lz_tensor& input = args->tensors[kInput];
  const bool scaled = of_input && input.shape[input.ndim - 1] > 0;  // an empty row has nothing to weight, not even
                                                                    // by NaN
  for (int64_t i = 0; i < count; ++i) {
    memory.inputs[i] = Data<const T>(args->tensors[kInput]) + x_row[first_token + shares[i].token];
    memory.scales[i] = shares[i].weight;
  }
  expert.Hidden(args, memory.inputs, scaled ? memory.scales : nullptr, count, memory.packed, memory.h);
  for (int64_t i = 0; i < count; ++i) memory.hidden[i] = memory.h + i * s.n;
  expert.Down(args, memory.hidden, count, memory.packed,
              [&](int64_t row, int64_t first, int64_t columns, const float* outputs) {
                const float weight = of_input ? 1.0f : shares[row].weight;
                float* total = memory.sums + shares[row].token * s.m + first;
                for (int64_t c = 0; c < columns; ++c) total[c] += weight * outputs[c];
              });
}

template <class T, class Expert>
void RunExperts(const lz_kernel_args* args) {
  const MoeSizes s(args);
  const lz_tensor& out = args->tensors[kOutput];
  const int64_t tokens = NumRows(out);
  const RowOffsets x_row(args->tensors[kInput]), out_row(out);
  Memory<T> memory(args, s, Expert::PackedFloats(args));
  for (int64_t base = 0; base < tokens; base += s.tokens) {
    const int64_t count = std::min(s.tokens, tokens - base);
    SortShares(args, base, count, s.experts, memory.starts, memory.shares);
    std::fill_n(memory.sums, count * s.m, 0.0f);
    for (int64_t e = 0; e < s.experts; ++e) {
      if (memory.starts[e] == memory.starts[e + 1]) continue;
      const Expert expert(args, e);
      for (int64_t i = memory.starts[e]; i < memory.starts[e + 1]; i += kHiddenTileRows) {
        const int64_t rows = std::min(kHiddenTileRows, memory.starts[e + 1] - i);
        AddExpert(args, s, expert, memory.shares + i, rows, base, x_row, memory);
      }
    }
    for (int64_t t = 0; t < count; ++t) {
      MapRow(
          Data<T>(out) + out_row[base + t], s.m, [](auto, auto v) HWY_ATTR { return v; }, memory.sums + t * s.m);
    }
  }
}

template <class Expert>
uint64_t WorkspaceOf(const lz_kernel_args* args) {
  const MoeSizes s(args);
  const int64_t rows = std::min(kHiddenTileRows, s.tokens * s.k);
  return uint64_t((s.tokens * s.m + 1) * 4 + kHiddenTileRows * 20 + (s.experts + 1) * 8 + s.tokens * s.k * 16 +
                  Expert::PackedFloats(args) * 4 + rows * s.n * HiddenBytes(DTypeOf(args->tensors[0])));
}

}  // namespace lz::HWY_NAMESPACE::moe
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
