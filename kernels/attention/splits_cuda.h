// How the rows and keys of a call of attention are divided among blocks on CUDA.
#pragma once

#include "kernels/attention/problem_cuda.h"

namespace lz::attention {

inline constexpr int64_t kMostSplits = 256;

// How a kernel cuts a call: the rows of a block, the blocks that fill a large device, the fewest keys of a split.
struct CudaCut {
  int64_t rows, blocks, keys;
};
// Tiles of rows in FP32: those of wide rows are smaller, since the outputs are in registers.
inline CudaCut CutOfFloatTiles(const CudaProblem& p) {
  const bool wide = p.d_more > 0 || p.d_qk > 128 || p.d_v > 128;
  return {p.latent ? 16 : wide ? 32 : 64, 264, 128};
}
// Keys that cp.async copies as they are, and rows that fill more than half of a tile.
inline bool FillsFloatTiles(const CudaProblem& p) {
  constexpr int64_t kHalfOfTile = 32;
  const int64_t rows = p.packed() ? p.total_q * p.group / (p.b > 0 ? p.b : 1) : p.rows();
  return p.cache == DType::kF32 && p.shared == 0 && rows > kHalfOfTile;
}
// Few rows by dot products: with fewer rows each key costs less, with more its loads serve more.
inline constexpr int kPackedRows = 8;
inline CudaCut CutOfFew(const CudaProblem& p) {
  if (FillsFloatTiles(p)) return CutOfFloatTiles(p);
  return {p.packed() ? kPackedRows : p.rows() <= 1 ? 1 : p.rows() <= 4 ? 4 : 8, 528, 64};
}
// Tiles by products of matrices: of 16 rows if a KV head has no more or a prefix is shared, else of 64, or of 128 where
// sequences have as many. A block of MLA takes a multiprocessor for itself.
inline constexpr int kSlimRows = 16;
inline bool IsWide(const CudaProblem& p) {
  return !p.latent && p.d_more == 0 && (p.d_qk > kMostHeadDim || p.d_v > kMostHeadDim);
}
inline bool IsSlim(const CudaProblem& p) {
  return !IsWide(p) && !p.packed() && !p.latent && p.d_more == 0 && (p.rows() <= kSlimRows || p.shared > 0);
}
inline constexpr int kTile = 64, kLargeTile = 128;
// Keys that the warps of a slim tile's block take at once.
inline int64_t SlimStep(const CudaProblem& p) {
  const int32_t d = p.d_qk > p.d_v ? p.d_qk : p.d_v;
  return d <= 64 ? 256 : d <= 128 ? 128 : 64;
}
inline int64_t RowsOfWide(const CudaProblem& p) { return p.packed() || p.rows() > kSlimRows ? kTile : kSlimRows; }
inline CudaCut CutOfTiles(const CudaProblem& p) {
  if (IsWide(p)) return {RowsOfWide(p), RowsOfWide(p) == kSlimRows ? 264 : 132, 128};
  if (IsSlim(p)) return {kSlimRows, 132, SlimStep(p)};
  if (p.latent) return {kTile, 132, 32};
  if (p.d_more > 0) return {kTile, 264, 128};
  const int64_t rows = p.packed() ? p.total_q * p.group / (p.b > 0 ? p.b : 1) : p.rows();  // of a sequence
  return {rows >= kLargeTile && p.d_qk <= 128 && p.d_v <= 128 ? kLargeTile : kTile, 264, 128};
}
// Rows of two warpgroups, which have a multiprocessor for themselves.
inline constexpr int64_t kGroupRows = 128;
inline constexpr CudaCut kCutOfGroups = {kGroupRows, 132, 256};

// Tiles of rows of all sequences; of packed queries as many as there can be, and those of queries of no sequence.
__host__ __device__ inline int64_t TilesOf(const CudaProblem& p, int64_t rows) {
  if (p.packed()) return (p.total_q * p.group + rows - 1) / rows + p.b;
  return p.b * ((p.rows() + rows - 1) / rows);
}

// The most keys that a row sees, by the shapes.
inline int64_t MostSeen(const CudaProblem& p) {
  const int64_t keys = p.s_kv + p.shared;
  return p.window >= 0 && p.window + p.s_q < keys ? p.window + p.s_q : keys;
}
// From the shapes alone: lengths are on the device, a split without keys ends at once.
inline int32_t SplitsOf(const CudaProblem& p, const CudaCut& cut) {
  const int64_t units = TilesOf(p, cut.rows) * p.h_kv, fitting = MostSeen(p) / cut.keys;
  const int64_t most = fitting < kMostSplits ? fitting : kMostSplits;
  const int64_t splits = units > 0 ? cut.blocks / units : 1;
  const int64_t some = splits < most ? splits : most;
  return int32_t(some > 1 ? some : 1);
}
// Splits of few rows that are the blocks of a cluster, a power of two, which merges them without parts in memory.
// Without: more splits are needed than a cluster has blocks, or none. Tiles of latents gain nothing by it.
inline constexpr int kMostTogether = 8;
inline CudaProblem SplitTogether(CudaProblem p) {
  constexpr int64_t kManyKeys = 16384;  // with which more splits are worth a second launch
  constexpr int64_t kPairs = 132,
                    kLargeClusters = 96;  // blocks that run at once: groups of multiprocessors have a rest
  const int64_t units = TilesOf(p, kSlimRows) * p.h_kv, keys = MostSeen(p), step = SlimStep(p);
  if (!IsSlim(p) || keys <= step || keys > kManyKeys) return p;
  for (int32_t n = 2; n <= kMostTogether; n *= 2) {
    if (units * n <= (n == 2 ? kPairs : kLargeClusters) && keys >= n * (step / 2)) p.splits = p.together = n;
  }
  return p;
}
// What one of `splits` has of `steps`: as many as the others, or one more.
struct CudaShare {
  int32_t begin, end;
};
__host__ __device__ inline CudaShare ShareOf(int32_t steps, int32_t splits, int32_t split) {
  const int32_t each = steps / splits, more = steps % splits;  // the first `more` splits have one more
  const int32_t begin = split * each + (split < more ? split : more);
  return {begin, begin + each + (split < more ? 1 : 0)};
}
inline uint64_t PartBytes(const CudaProblem& p, const CudaCut& cut) {
  const int32_t splits = SplitsOf(p, cut);
  if (splits == 1) return 0;
  return sizeof(float) * uint64_t(p.outputs()) * (uint64_t(splits) * uint64_t(p.d_v + 2) + 1);
}

// `p` with parts in a workspace of PartBytes.
inline CudaProblem WithParts(CudaProblem p, void* workspace) {
  const int64_t rows = p.outputs();
  p.part = static_cast<float*>(workspace);
  p.part_top = p.part + p.parts() * rows * p.d_v;
  p.part_sum = p.part_top + p.parts() * rows;
  p.shift = p.slopes.data ? p.part_sum + p.parts() * rows : nullptr;
  return p;
}

}  // namespace lz::attention
