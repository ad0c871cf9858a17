// Attention through a map of blocks on CUDA (CudaMap): the queries of a tile, and the keys that they see. All rows of a
// tile are of one block of queries, so they see the same keys, and no others are read.
#pragma once

#include "kernels/attention/rows_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

__device__ inline uint32_t SumUpToLane(uint32_t v) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, v, unsigned(step));
    v += lane >= step ? other : 0;
  }
  return v;
}
// The size of a block, whatever the tensor has: from 0 to `most`.
__device__ inline uint32_t BlockSize(const void* sizes, bool wide, int64_t at, int64_t most) {
  const int64_t size = LoadIndex(sizes, at, wide);
  return uint32_t(size < 0 ? 0 : size > most ? most : size);
}

// The tile'th tile of a KV head: its block of queries, those queries, and the tile's number among the block's. Called
// by whole warps. False after the last.
__device__ inline bool FindMappedTile(const CudaProblem& p, int64_t rows, int kv, int64_t* tile, int* b,
                                      CudaQueries* queries) {
  const int lane = threadIdx.x % kWarp;
  uint32_t first = 0;
  for (int from = 0; from < p.b; from += kWarp) {
    uint32_t count = 0;
    if (from + lane < p.b) {
      const int64_t at = kv * p.map.row_strides[0] + (from + lane) * p.map.row_strides[1];
      count = BlockSize(p.map.rows, p.map.wide_rows, at, p.total_q);
    }
    const uint32_t tiles = uint32_t((int64_t(count) * p.group + rows - 1) / rows);
    const uint32_t tiles_to = SumUpToLane(tiles), to = first + SumUpToLane(count);
    const unsigned later = __ballot_sync(0xffffffffu, *tile < int64_t(tiles_to));
    if (later == 0) {
      *tile -= __shfl_sync(0xffffffffu, tiles_to, kWarp - 1);
      first = __shfl_sync(0xffffffffu, to, kWarp - 1);
      continue;
    }
    const int found = __ffs(int(later)) - 1;
    *tile -= __shfl_sync(0xffffffffu, tiles_to - tiles, found);
    const int64_t end = __shfl_sync(0xffffffffu, to, found), n = __shfl_sync(0xffffffffu, count, found);
    *b = from + found;
    *queries = {int32_t(end <= p.total_q ? n : 0), end - n};
    return true;
  }
  return false;
}

// A block of keys of a KV head.
struct MapColumn {
  uint32_t size, seen;  // keys; those that the block of queries sees: all or none
};
__device__ inline MapColumn ColumnOf(const CudaProblem& p, int kv, int b, int c) {
  if (c >= p.map.num_columns) return {0, 0};
  const int64_t at = kv * p.map.column_strides[0] + c * p.map.column_strides[1];
  const uint32_t size = BlockSize(p.map.columns, p.map.wide_columns, at, p.s_kv);
  const bool seen = p.map.seen[kv * p.map.seen_strides[0] + b * p.map.seen_strides[1] + c * p.map.seen_strides[2]];
  return {size, seen ? size : 0};
}

// How many keys a block of queries sees. Called by whole warps.
__device__ inline int64_t MappedLength(const CudaProblem& p, int kv, int b) {
  uint32_t seen = 0;
  for (int c = threadIdx.x % kWarp; c < p.map.num_columns; c += kWarp) seen += ColumnOf(p, kv, b, c).seen;
  const uint32_t all = __shfl_sync(0xffffffffu, SumUpToLane(seen), kWarp - 1);
  return all < p.s_kv ? all : p.s_kv;
}

// Finds the keys that a block of queries sees, in their order, for a warp that asks for later and later ones.
struct MapWalk {
  int32_t next = 0;                // the first block of keys after those that the lanes have
  uint32_t keys = 0, seen = 0;     // in the blocks up to `next`
  uint32_t begin = 0, before = 0;  // of the lane's block: its first key, the seen keys before it
  uint32_t end = 0;                // seen keys up to its end

  __device__ void Load(const CudaProblem& p, int kv, int b) {
    const MapColumn column = ColumnOf(p, kv, b, next + int(threadIdx.x) % kWarp);
    const uint32_t keys_to = keys + SumUpToLane(column.size);
    end = seen + SumUpToLane(column.seen);
    begin = keys_to - column.size, before = end - column.seen;
    keys = __shfl_sync(0xffffffffu, keys_to, kWarp - 1);
    seen = __shfl_sync(0xffffffffu, end, kWarp - 1);
    next += kWarp;
  }
  // The number of the j'th seen key of all; -1 from `last` on.
  __device__ int32_t Key(const CudaProblem& p, int kv, int b, int j, int last) {
    int32_t key = -1;
    bool wanted = j < last;
    while (true) {
      int lane = 0;  // the first whose end is after j
#pragma unroll
      for (int step = kWarp / 2; step > 0; step /= 2) {
        if (__shfl_sync(0xffffffffu, end, lane + step - 1) <= uint32_t(j)) lane += step;
      }
      const uint32_t at = __shfl_sync(0xffffffffu, begin, lane) + (j - __shfl_sync(0xffffffffu, before, lane));
      if (wanted && uint32_t(j) < seen) {
        key = at < p.s_kv ? int32_t(at) : -1;
        wanted = false;
      }
      if (!__any_sync(0xffffffffu, wanted) || next >= p.map.num_columns) return key;
      Load(p, kv, b);
    }
  }
};

// What a block of a tile kernel works on: rows from row0 on of sequence b and KV head kv, and the keys of its split.
struct BlockOfTiles {
  int kv, split, b;
  CudaSequence seq;
  CudaQueries queries;
  int64_t row0;
  CudaRange keys;
};
// The block'th of the call's, in an order in which earlier ones have more keys: with causality the last rows of a
// sequence. Those of other sequences come between as far as the keys of both fit into the L2. kMapped: with a map of
// blocks. Called by whole warps; false: there is none.
template <bool kMapped>
__device__ bool FindBlock(const CudaProblem& p, int rows, int keys, uint32_t block, BlockOfTiles* to) {
  constexpr int64_t kCached = 32 << 20;
  to->kv = int(block % uint32_t(p.h_kv));
  block /= uint32_t(p.h_kv);
  const auto all_tiles = uint32_t(TilesOf(p, rows));  // fewer than 2^31 (LaunchBlocks)
  to->split = int(block / all_tiles);
  block %= all_tiles;
  int64_t tile = all_tiles - 1 - block;
  if constexpr (kMapped) {
    if (!FindMappedTile(p, rows, to->kv, &tile, &to->b, &to->queries)) return false;
    to->seq = {MappedLength(p, to->kv, to->b), 0};
  } else {
    if (p.q_indptr) {
      if (!FindTile(p, rows, &tile, &to->b)) return false;
    } else {
      const uint32_t tiles = all_tiles / uint32_t(p.b);
      const int64_t bytes = p.s_kv * p.h_kv * (p.d_qk + p.d_v) * 2;
      const uint32_t fitting = bytes < kCached ? uint32_t(kCached) / uint32_t(bytes > 0 ? bytes : 1) : 1;
      const uint32_t together = fitting < uint32_t(p.b) ? fitting : uint32_t(p.b);  // sequences
      const uint32_t section = block / (together * tiles), before = section * together;
      const uint32_t left = uint32_t(p.b) - before, some = left < together ? left : together;
      block -= before * tiles;
      to->b = int(before + block % some);
      tile = tiles - 1 - block / some;
    }
    to->seq = SequenceOf(p, to->b);
    to->queries = QueriesOf(p, to->b);
  }
  to->row0 = tile * rows;
  const int64_t num_rows = int64_t(to->queries.count) * p.group;
  const int64_t last_row = to->row0 + rows < num_rows ? to->row0 + rows - 1 : num_rows - 1;
  to->keys = KeysOf(p, to->queries, to->seq.length, to->row0, last_row, to->split, keys);
  return true;
}

}  // namespace lz::attention
#endif  // __CUDACC__
