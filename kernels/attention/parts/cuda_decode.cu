// Attention of few rows on CUDA: by the dtype of keys and values, whole or in parts that are merged.
#include "kernels/attention/splits_cuda.h"
#include "kernels/cuda_cluster.h"

namespace lz::attention {

namespace {
int32_t FewParts(const CudaProblem& p, void* stream) {
  switch (p.cache) {
    case DType::kF32: return DecodeF32(p, stream);
    case DType::kF16: return DecodeF16(p, stream);
    case DType::kBF16: return DecodeBF16(p, stream);
    case DType::kI8: return DecodeI8(p, stream);
    case DType::kF8E4M3: return DecodeF8E4M3(p, stream);
    default: return DecodeF8E5M2(p, stream);
  }
}
}  // namespace

int32_t FloatTileParts(const CudaProblem& p, void* stream) {
  if (p.outputs() == 0) return LZ_LAUNCH_DONE;
  if (p.map.given) return MappedFloatTiles(p, stream);
  const int32_t code = FloatTiles(p, stream);
  const bool few_serve = !p.latent && p.d_more == 0;  // with less shared memory
  return code == LZ_LAUNCH_REFUSED && few_serve ? FewParts(p, stream) : code;
}
int32_t DecodeParts(const CudaProblem& p, void* stream) {
  if (p.outputs() == 0) return LZ_LAUNCH_DONE;
  return FillsFloatTiles(p) ? FloatTileParts(p, stream) : FewParts(p, stream);
}

int32_t TileParts(const CudaProblem& p, void* stream) {
  if (p.outputs() == 0) return LZ_LAUNCH_DONE;
  if (p.map.given) return p.type == DType::kF16 ? MappedF16(p, stream) : MappedBF16(p, stream);
  if (IsWide(p)) return p.type == DType::kF16 ? WideF16(p, stream) : WideBF16(p, stream);
  return p.type == DType::kF16 ? TilesF16(p, stream) : TilesBF16(p, stream);
}

namespace {
template <class Out>
int32_t MergeParts(const CudaProblem& p, void* stream) {
  const int64_t rows = p.outputs();
  MergeProblem<float, Out> m = {.side = {{.v = p.part,
                                          .s = p.part_top,
                                          .sum = p.part_sum,
                                          .v_part = rows * p.d_v,
                                          .v_n = int64_t(p.h_q) * p.d_v,
                                          .v_h = p.d_v,
                                          .s_part = rows,
                                          .s_n = p.h_q,
                                          .s_h = 1,
                                          .sum_part = rows,
                                          .sum_n = p.h_q,
                                          .sum_h = 1}},
                                .sinks = p.sinks.data,
                                .sinks_type = p.sinks.type,
                                .sinks_stride = p.sinks.stride,
                                .shift = p.shift,
                                .out = static_cast<Out*>(const_cast<void*>(p.out.data)),
                                .out_b = p.out.outer,
                                .out_n = p.out.seq,
                                .out_h = p.out.head,
                                .lse = p.lse,
                                .lse_b = p.lse_b,
                                .lse_n = p.lse_s,
                                .lse_h = p.lse_h,
                                .parts = p.parts(),
                                .h = p.h_q,
                                .d = p.d_v,
                                .n = p.packed() ? INT32_MAX : p.s_q,  // packed queries are one axis
                                .rows = rows};
  return LaunchMerge<false>(m, stream);
}

// `p` with its splits; parts, if there are some, are in the workspace.
template <class Parts>
int32_t Run(CudaProblem p, const lz_kernel_args* args, Parts&& parts) {
  if (p.parts() > 1) p = WithParts(p, args->workspace);
  const int32_t code = parts(p, args->stream);
  if (code != LZ_LAUNCH_DONE || p.parts() == 1) return code;
  return WithCudaFloat(p.type, [&](auto type) { return MergeParts<decltype(type)>(p, args->stream); });
}
}  // namespace

namespace {
// Rows of a sequence have 32-bit numbers.
bool CountsRows(const CudaProblem& p) { return (p.packed() ? p.total_q : p.s_q) <= int64_t{UINT32_MAX} / p.group; }
}  // namespace

int32_t RunFew(CudaProblem p, const lz_kernel_args* args) {
  if (p.outputs() == 0) return LZ_LAUNCH_DONE;  // no heads, no groups
  if (!CountsRows(p)) return LZ_LAUNCH_REFUSED;
  p.splits = SplitsOf(p, CutOfFew(p));
  return Run(p, args, &DecodeParts);
}
int32_t RunFloatTiles(CudaProblem p, const lz_kernel_args* args) {
  if (p.outputs() == 0) return LZ_LAUNCH_DONE;
  if (!CountsRows(p)) return LZ_LAUNCH_REFUSED;
  p.splits = SplitsOf(p, CutOfFloatTiles(p));
  return Run(p, args, &FloatTileParts);
}
namespace {
int32_t GroupParts(const CudaProblem& p, void* stream) {
  return p.type == DType::kF16 ? GroupsF16(p, stream) : GroupsBF16(p, stream);
}
// Outputs are written in pairs.
bool TakesTiles(const CudaProblem& p) {
  const uint64_t places = uint64_t(p.out.outer | p.out.seq | p.out.head) * 2 | reinterpret_cast<uintptr_t>(p.out.data);
  return places % 4 == 0 && CountsRows(p);
}
}  // namespace

int32_t RunTiles(CudaProblem p, const lz_kernel_args* args) {
  if (p.outputs() == 0) return LZ_LAUNCH_DONE;
  if (!TakesTiles(p)) return LZ_LAUNCH_REFUSED;
  if (const CudaProblem t = SplitTogether(p); t.together > 1 && HasClusters()) {
    const int32_t code = Run(t, args, &TileParts);
    if (code != LZ_LAUNCH_REFUSED) return code;
  }
  p.splits = SplitsOf(p, CutOfTiles(p));
  return Run(p, args, &TileParts);
}
int32_t RunGroups(CudaProblem p, const lz_kernel_args* args) {
  if (p.outputs() == 0) return LZ_LAUNCH_DONE;
  if (!TakesTiles(p)) return LZ_LAUNCH_REFUSED;
  p.splits = SplitsOf(p, kCutOfGroups);
  return Run(p, args, &GroupParts);
}

}  // namespace lz::attention
