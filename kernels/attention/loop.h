// The loop of attention on the CPU over dense and paged keys and values of one dtype: work items, split KV, threads.
// All query heads of a KV head share each pass over its keys. For few rows dot products read the cache directly; for
// many rows blocks of 64 keys are transposed first. FP32 throughout (class fp32); on a CPU with AMX, products in bf16
// are those of amx.h, exact up to FP32 sums and weights of 16 bits. Deterministic: the split of sums depends only on
// the call. Workspace: scratch per worker; partial results if the keys of one head are split. Source: own; online
// softmax arXiv:1805.02867, split KV arXiv:2311.01282. Include only from files that Highway compiles per target
// (after kernels/simd.h).
#if defined(LZ_KERNELS_ATTENTION_LOOP_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ATTENTION_LOOP_H_
#undef LZ_KERNELS_ATTENTION_LOOP_H_
#else
#define LZ_KERNELS_ATTENTION_LOOP_H_
#endif

#include <atomic>

#include "core/kernel.h"
#include "kernels/attention/problem.h"
#include "kernels/attention/tile.h"
#include "kernels/launch.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::attn {
using attention::kDirectRows;
using attention::kMaxHeads;
using attention::Padded;
using attention::Plan;

constexpr int64_t kMaxItemRows = std::max(kMaxHeads * kDirectRows, kRows);

struct Unit {  // (tile, sequence, KV heads); later tiles come first: under a causal mask they take longest
  int64_t batch, kv_head, row0, rows;
};
inline Unit UnitOf(const Problem& p, const Plan& plan, int64_t unit) {
  const int64_t groups = p.h_kv / plan.heads, tile = p.tiles() - 1 - unit / (p.b * groups),
                rest = unit % (p.b * groups);
  return {rest / groups, rest % groups * plan.heads, tile * kRows, std::min(kRows, p.rows() - tile * kRows)};
}

// One head's result of one split.
inline float* PartOf(const Plan& plan, int64_t unit, int64_t head, int64_t split, float* parts) {
  return parts + ((unit * plan.heads + head) * plan.splits + split) * plan.part_floats;
}

// Consecutive items have the same split of the keys of different units: if heads are adjacent in memory, so are
// their rows.
inline Stretch KeysOf(const Problem& p, const Plan& plan, int64_t item) {
  if (item >= plan.items) return {};
  const int64_t units = plan.items / plan.splits, split = item / units;
  const Unit u = UnitOf(p, plan, item % units);
  const Sequence seq = SequenceOf(p, u.batch);
  Range keys = {seq.length, 0};
  for (int64_t pos = u.row0 / p.group; pos <= (u.row0 + u.rows - 1) / p.group; ++pos) {
    const Range seen = VisibleTo(p, seq, pos);
    if (seen.lo < seen.hi) keys = {std::min(keys.lo, seen.lo), std::max(keys.hi, seen.hi)};
  }
  const int64_t blocks = (std::max(keys.hi - keys.lo, int64_t{0}) + kBlock - 1) / kBlock;
  const int64_t share = (blocks + plan.splits - 1) / plan.splits * kBlock;
  const int64_t begin = keys.lo + split * share;
  return {seq, u.batch, u.kv_head, begin, std::min(keys.hi, begin + share)};
}

// `asked`: the item's first step was prefetched. Returns true if that of item `next` was.
template <class T>
bool RunItem(const Problem& p, const Plan& plan, int64_t item, int64_t next, bool asked, float* scratch, float* parts) {
  const int64_t units = plan.items / plan.splits, unit = item % units, split = item / units;
  const Unit u = UnitOf(p, plan, unit);
  Walk<T> walk(p, plan, KeysOf(p, plan, item), KeysOf(p, plan, next));
  const int64_t rows = p.tile_rows(), dq = walk.dq, dv = walk.dv;
  walk.asked = asked && walk.at.begin < walk.at.end;
  walk.amx = plan.packed && p.dtype == p.cache && !p.k_scale && HasAmx<T>();
  if (walk.amx) walk.step = kBlock;
  walk.s = scratch + plan.heads * rows * (dq + dv);
  walk.kt = walk.s + rows * kBlock;
  walk.vf = walk.kt + dq * kPackedBlock;
  float state[2 * kMaxItemRows];
  Tile<T> tiles[kMaxHeads];
  for (int64_t i = 0; i < plan.heads; ++i) {
    Tile<T>& t = tiles[i];
    t.walk = &walk;
    t.rows = u.rows;
    t.k_at = i * p.k.head;
    t.v_at = i * p.v.head;
    t.q = scratch + i * rows * (dq + dv);
    t.o = t.q + rows * dq;
    t.m = state + 2 * i * rows;
    if (plan.splits > 1) {
      t.o = PartOf(plan, unit, i, split, parts);
      t.m = t.o + rows * dv;
    }
    t.l = t.m + rows;
    for (int64_t r = 0; r < u.rows; ++r) t.row[r] = MakeRow(p, walk.at.seq, u.batch, u.kv_head + i, u.row0 + r);
  }
  RunTiles(walk, tiles);
  if (plan.splits > 1) return walk.asked;
  for (int64_t i = 0; i < plan.heads; ++i) {
    const Tile<T>& t = tiles[i];
    for (int64_t r = 0; r < u.rows; ++r) FinishRow<T>(p, t.row[r], t.o + r * dv, t.m[r], t.l[r]);
  }
  return walk.asked;
}

// Merges the splits of one head of a unit, in place of the first split.
template <class T>
void MergeHead(const Problem& p, const Plan& plan, int64_t unit, int64_t head, float* parts) {
  const Unit u = UnitOf(p, plan, unit);
  const Sequence seq = SequenceOf(p, u.batch);
  const int64_t rows = p.tile_rows(), dv = Padded(p.d_v);
  const auto part = [&](int64_t s) { return PartOf(plan, unit, head, s, parts); };
  for (int64_t r = 0; r < u.rows; ++r) {
    const auto o = [&](int64_t s) { return part(s) + r * dv; };
    const auto m = [&](int64_t s) { return part(s)[rows * dv + r]; };
    const auto l = [&](int64_t s) { return part(s)[rows * dv + rows + r]; };
    float top = -kInf, sum = 0;
    for (int64_t s = 0; s < plan.splits; ++s) top = m(s) > top ? m(s) : top;
    for (int64_t s = 0; s < plan.splits; ++s) {
      const float w = m(s) == -kInf ? 0.0f : std::exp(m(s) - top);
      sum += w * l(s);
      const auto weight = hn::Set(kD, w);
      for (int64_t i = 0; i < dv; i += kL) {
        const auto share = hn::Mul(weight, hn::Load(kD, o(s) + i));
        hn::Store(s == 0 ? share : hn::Add(share, hn::Load(kD, o(0) + i)), kD, o(0) + i);
      }
    }
    FinishRow<T>(p, MakeRow(p, seq, u.batch, u.kv_head + head, u.row0 + r), o(0), top, sum);
  }
}

// Estimated time on one core: 64 multiply-adds or 64 bytes per nanosecond.
inline double Nanoseconds(const Problem& p) {
  double keys = 0;
  for (int64_t s = 0; s < p.b; ++s) keys += double(SequenceOf(p, s).length);
  if (p.causal && p.s_q > 1) keys /= 2;
  return keys * double(p.h_kv * (p.d_qk + p.d_v)) * double(std::max(p.rows(), ByteSize(p.cache))) / 64.0;
}

template <class T>
int32_t RunAll(const Problem& p, const lz_kernel_args* args) {
  constexpr double kWorthwhile = 4000;  // ns of work that pay for waking another thread
  Plan plan = attention::MakePlan(p, args->parallel, args->workspace_bytes);
  if (args->workspace_bytes < plan.bytes()) plan.slots = 1;  // the workspace was computed for fewer threads
  if (args->workspace_bytes < plan.bytes()) return 1;
  float* scratch = static_cast<float*>(args->workspace);
  float* parts = scratch + plan.slots * plan.slot_floats;
  const int64_t workers = std::clamp(int64_t(std::min(Nanoseconds(p) / kWorthwhile, 1e6)), int64_t{1}, plan.slots);
  if (workers == 1) {
    bool asked = false;
    for (int64_t i = 0; i < plan.items; ++i) asked = RunItem<T>(p, plan, i, i + 1, asked, scratch, parts);
  } else {  // each worker takes its next item before it runs the current one, to prefetch it
    std::atomic<int64_t> next = 0;
    const auto take = [&] { return next.fetch_add(1, std::memory_order_relaxed); };
    ParallelFor(args, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) {
        bool asked = false;
        for (int64_t i = take(); i < plan.items;) {
          const int64_t then = take();
          asked = RunItem<T>(p, plan, i, then, asked, scratch + w * plan.slot_floats, parts);
          i = then;
        }
      }
    });
  }
  if (plan.splits == 1) return 0;
  const int64_t heads = plan.items / plan.splits * plan.heads;
  ParallelFor(args, heads, workers == 1 ? heads : (heads + workers - 1) / workers, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) MergeHead<T>(p, plan, h / plan.heads, h % plan.heads, parts);
  });
  return 0;
}

}  // namespace lz::HWY_NAMESPACE::attn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
