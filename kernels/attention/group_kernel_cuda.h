// Attention on CUDA by products of warpgroups in 16 bits (sm_90a): a block takes 128 rows that share a KV head over a
// split of the keys. One warpgroup copies keys and values, two have 64 rows each; while the products of one step are
// made they weigh the logits of the next. Sums, softmax and biases in FP32; weights are rounded to 16 bits for the
// product with the values (class bf16-p). Source: own; the division of work is that of arXiv:2407.08608.
#pragma once

#include "kernels/attention/map_cuda.h"
#include "kernels/attention/tile_cuda.h"
#include "kernels/phases_cuda.h"
#include "kernels/wgmma_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

// kD: columns of queries, keys and values; kKeys at once.
template <int kColumns, int kKeysAtOnce>
struct GroupShape {
  static constexpr int kD = kColumns, kKeys = kKeysAtOnce, kRows = int(kGroupRows), kStages = 2;
  static constexpr int kThreads = 3 * kWarpgroup, kOfWarp = kKeys / 4;  // keys that a warp copies
  static constexpr int kQ = kRows * kD * 2, kK = kKeys * kD * 2;        // bytes
  static constexpr int kBytes = kQ + kStages * 2 * kK;
  static constexpr int kRowsOfPanel = kRows * kPanelRow, kKeysOfPanel = kKeys * kPanelRow;  // bytes
  static_assert(kRows == 2 * 64 && kD % kPanel == 0 && kOfWarp % 8 == 0 && kOfWarp <= kWarp);
};

// What the copying warpgroup and the others tell each other: a stage's keys or values are there, or no longer needed.
template <int kStages>
struct Stages {
  Phases keys_there[kStages], values_there[kStages], keys_free[kStages], values_free[kStages];
};

// A warp's rows to panels of kRows rows, zeros for columns from `width` on. `at`: elements to the row of each lane, or
// -1.
template <class T, int kColumns, int kRows>
__device__ void CopyToPanels(char* to, const void* data, int64_t at, int width, int warp) {
  constexpr int kOfWarp = kRows / 4;
  const int lane = threadIdx.x % kWarp, chunk = lane % 8;
  const T* const from = static_cast<const T*>(data);
#pragma unroll
  for (int i = 0; i < kOfWarp; i += 4) {
    const int row = warp * kOfWarp + i + lane / 8;
    const int64_t first = __shfl_sync(0xffffffffu, at, i + lane / 8);
#pragma unroll
    for (int panel = 0; panel < kColumns / kPanel; ++panel) {
      const int column = panel * kPanel + chunk * kChunk;
      const bool there = first >= 0 && column < width;
      CopyAsync16(to + panel * kRows * kPanelRow + PanelAt(row, chunk), there ? from + first + column : from,
                  there ? 16 : 0);
    }
  }
}

#ifdef LZ_HAS_WARPGROUPS
template <class T, class S>
__device__ void CopyForGroups(const CudaProblem& p, const BlockOfTiles& block, char* q, char* k, char* v,
                              Stages<S::kStages>& stages) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, end = block.keys.end;
  const auto spot_of = [&](int j0) {
    const KeySpot none = {-1, 0};
    return lane < S::kOfWarp ? SpotOf(p, block.seq, block.b, j0 + warp * S::kOfWarp + lane, end) : none;
  };
  const auto copy = [&](char* to, const CudaRows& rows, const KeySpot& spot, int width) {
    const int64_t at = spot.page * rows.outer + spot.slot * rows.seq + block.kv * rows.head;
    CopyToPanels<T, S::kD, S::kKeys>(to, rows.data, spot.page < 0 ? -1 : at, width, warp);
  };
  KeySpot spot = spot_of(block.keys.begin);
  const CudaRow row = RowOf(p, block.queries, block.row0 + warp * (S::kRows / 4) + lane, block.kv, block.seq.length);
  const int64_t query = row.live ? Offset(p.q, p, block.queries, row, block.b) : -1;
  CopyToPanels<T, S::kD, S::kRows>(q, p.q.data, query, p.d_qk, warp);  // they are there when the first keys are
  uint32_t step = 0;
  for (int j0 = block.keys.begin; j0 < end; j0 += S::kKeys, ++step) {
    const uint32_t stage = step % S::kStages, phase = step / S::kStages;
    WaitForPhase(&stages.keys_free[stage], (phase + 1) % 2);
    copy(k + stage * S::kK, p.k, spot, p.d_qk);
    ArriveAfterCopies(&stages.keys_there[stage]);
    WaitForPhase(&stages.values_free[stage], (phase + 1) % 2);
    copy(v + stage * S::kK, p.v, spot, p.d_v);
    ArriveAfterCopies(&stages.values_there[stage]);
    spot = spot_of(j0 + S::kKeys);
  }
  CommitCopies();
  WaitForCopies<0>();
}

// q, k, v: panels of the block; rows: of this lane, g and g + 8 of its warp's 16.
template <class T, class S, Changes kChanges>
__device__ void AttendInGroup(const CudaProblem& p, const BlockOfTiles& block, const CudaRow (&rows)[2], const char* q,
                              const char* k, const char* v, Stages<S::kStages>& stages) {
  constexpr int kD = S::kD, kKeys = S::kKeys;
  const int begin = block.keys.begin, end = block.keys.end;
  const float unit = p.scale * (p.k_scale.data ? At(p.k_scale, block.kv) : 1.0f);
  float out[kD / 8][4] = {}, z[kKeys / 8][4] = {}, top[2] = {-HUGE_VALF, -HUGE_VALF}, sum[2] = {}, kept[2];
  uint32_t weights[kKeys / 16][4];

  const auto release = [&](Phases* stage) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) Arrive(stage);
  };
  const auto multiply_keys = [&](uint32_t step) {
    const uint32_t stage = step % S::kStages;
    WaitForPhase(&stages.keys_there[stage], step / S::kStages % 2);
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
  const auto multiply_values = [&](uint32_t step) {
    const uint32_t stage = step % S::kStages;
    WaitForPhase(&stages.values_there[stage], step / S::kStages % 2);
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
    ToLogits<kKeys, kChanges>(z, p, rows, unit, block.b, j0, j0 + kKeys <= end, [&](int i) { return j0 + i < end; });
    Weigh<kKeys, kChanges == Changes::kNone>(z, top, sum, kept, unit);
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

  if (begin < end) {
    multiply_keys(0);
    WaitForProducts<0>();
    Pin(z);
    release(&stages.keys_free[0]);
    weigh(begin);
    pack();
    uint32_t step = 1;
    for (int j0 = begin + kKeys; j0 < end; j0 += kKeys, ++step) {
      multiply_keys(step);
      multiply_values(step - 1);
      WaitForProducts<1>();
      Pin(z);
      release(&stages.keys_free[step % S::kStages]);
      weigh(j0);
      WaitForProducts<0>();
      Pin(out);
      Pin(weights);
      release(&stages.values_free[(step - 1) % S::kStages]);
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
    Pin(out);
  }
  if constexpr (kChanges == Changes::kNone) top[0] *= unit, top[1] *= unit;
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
  BlockOfTiles block;
  if (!FindBlock<false>(p, S::kRows, S::kKeys, &block)) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      MakePhases(&stages.keys_there[i], kWarpgroup);
      MakePhases(&stages.values_there[i], kWarpgroup);
      MakePhases(&stages.keys_free[i], 2 * kWarpgroup / kWarp);
      MakePhases(&stages.values_free[i], 2 * kWarpgroup / kWarp);
    }
  }
  __syncthreads();
  // 128 threads of 40 registers and 256 of 232 are all that a multiprocessor has.
  const int group = int(threadIdx.x) / kWarpgroup - 1;
  if (group < 0) {
    SetRegisters<40, false>();
    CopyForGroups<T, S>(p, block, q, k, v, stages);
    return;
  }
  SetRegisters<232, true>();
  const int first = group * 64 + int(threadIdx.x) % kWarpgroup / kWarp * 16 + int(threadIdx.x) % kWarp / 4;
  const CudaRow rows[2] = {RowOf(p, block.queries, block.row0 + first, block.kv, block.seq.length),
                           RowOf(p, block.queries, block.row0 + first + 8, block.kv, block.seq.length)};
  AttendInGroup<T, S, kChanges>(p, block, rows, q + group * 64 * kPanelRow, k, v, stages);
#else
  __trap();  // a row keeps such devices away
#endif
}

template <class T, class S, Changes kChanges>
int32_t LaunchGroupFor(const CudaProblem& p, void* stream) {
  return LaunchBlocks<&GroupAttention<T, S, kChanges>, S>(p, stream);
}
template <class T, class S>
int32_t LaunchGroupOf(const CudaProblem& p, void* stream) {
  if (p.mask) return LaunchGroupFor<T, S, Changes::kAny>(p, stream);
  const bool is_scale_positive = p.scale > 0 && !p.k_scale.data;
  const bool plain = p.softcap <= 0 && !p.slopes.data && is_scale_positive;
  return plain ? LaunchGroupFor<T, S, Changes::kNone>(p, stream)
               : LaunchGroupFor<T, S, Changes::kCapAndSlopes>(p, stream);
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
