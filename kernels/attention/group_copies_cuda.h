// The warpgroup that copies for attention by warpgroups on CUDA: it finds the tiles that a block works on, copies their
// queries, keys and values into shared memory, and passes on where they are to the warpgroups that multiply.
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
  static constexpr int kD = kColumns, kKeys = kKeysAtOnce, kRows = int(kGroupRows), kStages = kD > 128 ? 2 : 3;
  static constexpr int kThreads = 3 * kWarpgroup, kOfWarp = kKeys / 4;  // keys that a warp copies
  static constexpr int kQ = kRows * kD * 2, kK = kKeys * kD * 2;        // bytes
  static constexpr int kBytes = kQ + kStages * 2 * kK;
  static constexpr int kRowsOfPanel = kRows * kPanelRow, kKeysOfPanel = kKeys * kPanelRow;  // bytes
  static_assert(kRows == 2 * 64 && kD % kPanel == 0 && kOfWarp % 8 == 0 && kOfWarp <= kWarp);
};

// What the warpgroups tell each other: the block to work on is there, a stage's keys or values are; they are no longer
// needed, like the queries; it is the turn of one of the two that multiply.
template <int kStages>
struct Stages {
  BlockOfTiles blocks[2];
  Phases block_there[2], block_free[2];
  Phases keys_there[kStages], values_there[kStages], keys_free[kStages], values_free[kStages], queries_free, turns[2];
};

// A warp's rows to panels of kRows rows, zeros for columns from `width` on. `at`: elements to the row of each lane, or
// -1. One warpgroup copies for two that multiply: few instructions for each copy are what counts here.
template <class T, int kColumns, int kRows>
__device__ void CopyToPanels(char* to, const T* data, int64_t at, int width, int warp) {
  constexpr int kOfWarp = kRows / 4, kPanels = kColumns / kPanel;
  const int lane = threadIdx.x % kWarp, chunk = lane % 8, first = lane / 8;
  const unsigned there = __ballot_sync(0xffffffffu, at >= 0) >> first;
  const int64_t bytes = at < 0 ? 0 : at * int64_t(sizeof(T));
  const char* const from = reinterpret_cast<const char*>(data + chunk * kChunk);
  char* const places[2] = {to + PanelAt(warp * kOfWarp + first, chunk),
                           to + PanelAt(warp * kOfWarp + first + 4, chunk)};
  int sizes[kPanels];
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) sizes[panel] = panel * kPanel + chunk * kChunk < width ? 16 : 0;
#pragma unroll
  for (int i = 0; i < kOfWarp; i += 4) {
    const char* const row = from + __shfl_sync(0xffffffffu, bytes, i + first);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      CopyAsync16(places[i / 4 % 2] + i / 8 * kPanelGroup + panel * kRows * kPanelRow, row + panel * kPanelRow,
                  there >> i & 1 ? sizes[panel] : 0);
    }
  }
}

#ifdef LZ_HAS_WARPGROUPS
// Calls work(block) for each of the call's blocks that this block of threads has: one in each round, in turns from the
// first and from the last on, as earlier ones have more keys.
template <class S, class Work>
__device__ void ForEachBlock(const CudaProblem& p, Work&& work) {
  const auto all = uint32_t(BlocksOf(p, S::kRows));
  bool is_backwards = false;
  for (uint32_t first = 0; first < all; first += gridDim.x, is_backwards = !is_backwards) {
    const uint32_t number = first + (is_backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    BlockOfTiles block;
    if (number < all && FindBlock<false>(p, S::kRows, S::kKeys, number, &block)) work(block);
  }
}
// The warpgroup that copies finds the blocks, the others read of them: kNoBlock comes after the last. `count`: of the
// blocks before.
inline constexpr int kNoBlock = -1;
template <class S>
__device__ void TellBlock(const BlockOfTiles& block, Stages<S::kStages>& stages, uint32_t count) {
  if (threadIdx.x != 0) return;
  const uint32_t place = count % 2;
  WaitForPhase(&stages.block_free[place], (count / 2 + 1) % 2);
  stages.blocks[place] = block;
  Arrive(&stages.block_there[place]);
}
template <class S, class Work>
__device__ void ForEachToldBlock(Stages<S::kStages>& stages, Work&& work) {
  for (uint32_t count = 0;; ++count) {
    const uint32_t place = count % 2;
    WaitForPhase(&stages.block_there[place], count / 2 % 2);
    const BlockOfTiles block = stages.blocks[place];
    ArriveAsWarp(&stages.block_free[place]);
    if (block.kv == kNoBlock) return;
    work(block);
  }
}

// How many steps and blocks with keys there were.
struct Progress {
  uint32_t steps = 0, blocks = 0;
};

template <class T, class S>
__device__ void CopyForGroups(const CudaProblem& p, const BlockOfTiles& block, char* q, char* k, char* v,
                              Stages<S::kStages>& stages, Progress& at) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, end = block.keys.end;
  const auto spot_of = [&](int j0) {
    const KeySpot none = {-1, 0};
    return lane < S::kOfWarp ? SpotOf(p, block.seq, block.b, j0 + warp * S::kOfWarp + lane, end) : none;
  };
  const auto copy = [&](char* to, const T* data, const CudaRows& rows, const KeySpot& spot, int width) {
    const int64_t at = spot.page < 0 ? -1 : spot.page * rows.outer + spot.slot * rows.seq;
    CopyToPanels<T, S::kD, S::kKeys>(to, data, at, width, warp);
  };
  const T* const keys = static_cast<const T*>(p.k.data) + block.kv * p.k.head;
  const T* const values = static_cast<const T*>(p.v.data) + block.kv * p.v.head;
  KeySpot spot = spot_of(block.keys.begin);
  for (int j0 = block.keys.begin; j0 < end; j0 += S::kKeys, ++at.steps) {
    const uint32_t stage = at.steps % S::kStages, phase = at.steps / S::kStages;
    WaitForPhase(&stages.keys_free[stage], (phase + 1) % 2);
    copy(k + stage * S::kK, keys, p.k, spot, p.d_qk);
    if (j0 == block.keys.begin) {  // the queries are there when the first keys are
      WaitForPhase(&stages.queries_free, (at.blocks++ + 1) % 2);
      const CudaRow row =
          RowOf(p, block.queries, block.row0 + warp * (S::kRows / 4) + lane, block.kv, block.seq.length);
      const int64_t query = row.live ? Offset(p.q, p, block.queries, row, block.b) : -1;
      CopyToPanels<T, S::kD, S::kRows>(q, static_cast<const T*>(p.q.data), query, p.d_qk, warp);
    }
    ArriveAfterCopies(&stages.keys_there[stage]);
    WaitForPhase(&stages.values_free[stage], (phase + 1) % 2);
    copy(v + stage * S::kK, values, p.v, spot, p.d_v);
    ArriveAfterCopies(&stages.values_there[stage]);
    spot = spot_of(j0 + S::kKeys);
  }
}
#endif  // LZ_HAS_WARPGROUPS

}  // namespace lz::attention
#endif  // __CUDACC__
