// Attention on CUDA by products of warpgroups in 16 bits (sm_90a): a block takes 128 rows that share a KV head over a
// split of the keys. One warpgroup copies keys and values, two have 64 rows each; while the products of one step are
// made they weigh the logits of the next. Sums, softmax and biases in FP32; weights are rounded to 16 bits for the
// product with the values (class bf16-p). Source: own; the division of work is that of arXiv:2407.08608.
#pragma once

#include "kernels/attention/group_copies_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

#ifdef LZ_HAS_WARPGROUPS
// q, k, v: panels of the block; rows: of this lane, g and g + 8 of its warp's 16.
template <class T, class S, Changes kChanges>
__device__ void AttendInGroup(const CudaProblem& p, const BlockOfTiles& block, const CudaRow (&rows)[2], const char* q,
                              const char* k, const char* v, int group, Stages<S::kStages>& stages, uint32_t& step) {
  constexpr int kD = S::kD, kKeys = S::kKeys;
  const int begin = block.keys.begin, end = block.keys.end;
  const float scale = p.scale * (p.k_scale.data ? At(p.k_scale, block.kv) : 1.0f);
  const LogitUnit unit = UnitOf<kChanges>(p, scale);
  float out[kD / 8][4] = {}, z[kKeys / 8][4] = {}, top[2] = {-HUGE_VALF, -HUGE_VALF}, sum[2] = {}, kept[2];
  uint32_t weights[kKeys / 16][4];

  // The groups take turns, so that one multiplies while the other weighs.
  const auto take_turn = [&] { WaitForPhase(&stages.turns[group], (step + (group == 0)) % 2); };
  const auto pass_turn = [&] { ArriveAsWarp(&stages.turns[1 - group]); };
  const auto multiply_keys = [&] {
    const uint32_t stage = step % S::kStages;
    WaitForPhase(&stages.keys_there[stage], step / S::kStages % 2);
    take_turn();
    CopiesAreForProducts();
    BeginProducts();
#pragma unroll
    for (int d = 0; d < kD; d += 16) {
      const int panel = d / kPanel, bytes = d % kPanel * 2;
      MultiplyShared<T, kKeys>(z, PanelMatrix(q + panel * S::kRowsOfPanel + bytes),
                               PanelMatrix(k + stage * S::kK + panel * S::kKeysOfPanel + bytes), d > 0);
    }
    CommitProducts();
  };
  const auto multiply_values = [&](uint32_t of) {
    const uint32_t stage = of % S::kStages;
    WaitForPhase(&stages.values_there[stage], of / S::kStages % 2);
    CopiesAreForProducts();
    Pin(out);
    Pin(weights);
    BeginProducts();
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) {
      MultiplyHeld<T, kD>(out, weights[s], PanelMatrix(v + stage * S::kK + s * 16 * kPanelRow, S::kKeysOfPanel));
    }
    CommitProducts();
  };
  const auto weigh = [&](int j0) {
    ToLogits<kKeys, kChanges>(z, p, rows, scale, block.b, j0, j0 + kKeys <= end, [&](int i) { return j0 + i < end; });
    Weigh<kKeys, kChanges != Changes::kAny>(z, top, sum, kept, unit.factor);
  };
  const auto pack = [&] {
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[s][i] = PackPair<T>(z[2 * s + i / 2][i % 2 * 2], z[2 * s + i / 2][i % 2 * 2 + 1]);
      }
    }
  };

  const auto keys_were_read = [&](int j0) {
    ArriveAsWarp(&stages.keys_free[step % S::kStages]);
    if (j0 + kKeys >= end) ArriveAsWarp(&stages.queries_free);
  };
  const auto values_were_read = [&](uint32_t of) {
    Pin(out);
    Pin(weights);
    ArriveAsWarp(&stages.values_free[of % S::kStages]);
  };

  if (begin < end) {
    multiply_keys();
    pass_turn();
    WaitForProducts<0>();
    Pin(z);
    keys_were_read(begin);
    weigh(begin);
    pack();
    ++step;
    for (int j0 = begin + kKeys; j0 < end; j0 += kKeys, ++step) {
      multiply_keys();
      multiply_values(step - 1);
      pass_turn();
      WaitForProducts<1>();
      Pin(z);
      keys_were_read(j0);
      weigh(j0);
      ComputeNow(sum[0] + sum[1]);
      WaitForProducts<0>();
      values_were_read(step - 1);
      if (__any_sync(0xffffffffu, kept[0] != 1 || kept[1] != 1)) {  // later keys seldom have a larger logit
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) out[n][i] *= kept[i / 2];
        }
      }
      pack();
    }
    multiply_values(step - 1);
    WaitForProducts<0>();
    values_were_read(step - 1);
  }
  if constexpr (kChanges != Changes::kAny) {
    for (float& t : top) t = t * unit.factor + unit.shift;
  }
  const float value_unit = p.v_scale.data ? At(p.v_scale, block.kv) : 1.0f;
  WriteBand<T, kD>(p, block.queries, rows, block.b, block.split, out, top, sum, 0, value_unit);
}
#endif  // LZ_HAS_WARPGROUPS

template <class T, class S, Changes kChanges>
__global__ void __launch_bounds__(S::kThreads, 1) GroupAttention(const __grid_constant__ CudaProblem p) {
#ifdef LZ_HAS_WARPGROUPS
  extern __shared__ __align__(1024) char panels_of_block[];
  __shared__ Stages<S::kStages> stages;
  char *const q = panels_of_block, *const k = q + S::kQ, *const v = k + S::kStages * S::kK;
  if (threadIdx.x == 0) {
    constexpr uint32_t kWarpsOfGroup = kWarpgroup / kWarp;
    for (int i = 0; i < S::kStages; ++i) {
      MakePhases(&stages.keys_there[i], kWarpgroup);
      MakePhases(&stages.values_there[i], kWarpgroup);
      MakePhases(&stages.keys_free[i], 2 * kWarpsOfGroup);
      MakePhases(&stages.values_free[i], 2 * kWarpsOfGroup);
    }
    MakePhases(&stages.queries_free, 2 * kWarpsOfGroup);
    for (int i = 0; i < 2; ++i) {
      MakePhases(&stages.turns[i], kWarpsOfGroup);
      MakePhases(&stages.block_there[i], 1);
      MakePhases(&stages.block_free[i], 2 * kWarpsOfGroup);
    }
  }
  __syncthreads();
  // 128 threads of 56 registers and 256 of 224 are all that a multiprocessor has.
  const int group = int(threadIdx.x) / kWarpgroup - 1;
  if (group < 0) {
    SetRegisters<56, false>();
    Progress at;
    uint32_t count = 0;
    ForEachBlock<S>(p, [&](const BlockOfTiles& block) {
      TellBlock<S>(block, stages, count++);
      CopyForGroups<T, S>(p, block, q, k, v, stages, at);
    });
    TellBlock<S>({.kv = kNoBlock}, stages, count);
    CommitCopies();
    WaitForCopies<0>();
    return;
  }
  SetRegisters<224, true>();
  const int first = group * 64 + int(threadIdx.x) % kWarpgroup / kWarp * 16 + int(threadIdx.x) % kWarp / 4;
  uint32_t step = 0;
  ForEachToldBlock<S>(stages, [&](const BlockOfTiles& block) {
    const CudaRow rows[2] = {RowOf(p, block.queries, block.row0 + first, block.kv, block.seq.length),
                             RowOf(p, block.queries, block.row0 + first + 8, block.kv, block.seq.length)};
    AttendInGroup<T, S, kChanges>(p, block, rows, q + group * 64 * kPanelRow, k, v, group, stages, step);
  });
#else
  __trap();  // a row keeps such devices away
#endif
}

inline int64_t Multiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess) {
    return count;
  }
  cudaGetLastError();
  return INT32_MAX;
}
// As many blocks as there are multiprocessors: each works on several, and copies the next one's keys meanwhile. Packed
// sequences differ in their lengths, which the device alone knows: it deals their blocks out.
template <class T, class S, Changes kChanges>
int32_t LaunchGroupFor(const CudaProblem& p, void* stream) {
  return LaunchBlocks<&GroupAttention<T, S, kChanges>, S>(p, stream, p.packed() ? INT32_MAX : Multiprocessors());
}
template <class T, class S>
int32_t LaunchGroupOf(const CudaProblem& p, void* stream) {
  constexpr float kLeastUnit = 1e-9f;  // below: slopes in units of it could overflow
  const bool small_unit = p.slopes.data && (p.softcap > 0 ? p.softcap : p.scale) < kLeastUnit;
  if (p.mask || !(p.scale > 0) || p.k_scale.data || small_unit || p.softcap > kLargeCap) {
    return LaunchGroupFor<T, S, Changes::kAny>(p, stream);
  }
  return p.softcap > 0 || p.slopes.data ? LaunchGroupFor<T, S, Changes::kCapAndSlopes>(p, stream)
                                        : LaunchGroupFor<T, S, Changes::kNone>(p, stream);
}
template <class T>
int32_t LaunchGroups(const CudaProblem& p, void* stream) {
  const int d = p.d_qk > p.d_v ? p.d_qk : p.d_v;
  if (d <= 64) return LaunchGroupOf<T, GroupShape<64, 128>>(p, stream);
  if (d <= 128) return LaunchGroupOf<T, GroupShape<128, 128>>(p, stream);
  return LaunchGroupOf<T, GroupShape<256, 64>>(p, stream);
}

}  // namespace lz::attention
#endif  // __CUDACC__
