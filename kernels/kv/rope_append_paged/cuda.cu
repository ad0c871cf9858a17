// kv.rope_append_paged on CUDA, by one launch: a thread turns a few pairs of columns or copies columns of a value.
//   query [n, h, d]  key [n, h_kv, d]  value [n, h_kv, d_v]  f32|f16|bf16, last dim dense
//   cos, sin [t, w]  f32|f16|bf16, rows dense     slots, position_ids [n]  i32|i64
//   key_cache, value_cache [blocks, block_size, h_kv, d]  any dtype, last dim dense; written in place
//   output [n, h, d]  may alias query             k_scale, v_scale [] [1] [h_kv]  f32, optional
// Workspace: none. Deterministic where slots differ. Safe in graph captures. The host cannot see indices without
// waiting for the device: a row whose slot is outside the cache is not stored, heads at a position outside the tables
// become NaN. Source: own; formula from arXiv:2104.09864 eq. 34. 16-byte accesses where strides allow them.
#include "kernels/dependent_cuda.h"
#include "kernels/kv/rows_cuda.h"
#include "kernels/spec.h"
#include "ops/kv/rope_append_paged.h"

namespace lz {
namespace {
using namespace lz::ops::kv_rope_append_paged;

constexpr int kThreads = 128;
constexpr int64_t kManyRows = 1024;  // fill the device without sharing a row among blocks

// Strides in elements.
struct Problem {
  const void *query, *cos, *sin, *ids, *slots;
  void* out;
  kv::PagedSide key, value;
  int64_t query_row, query_head, out_row, out_head, cos_row, sin_row, id_stride, slot_stride;
  int64_t n, table_rows;
  int32_t r, width;
  int32_t pairs, of_head;                    // units of a head: groups of pairs, then those of columns that do not turn
  int32_t of_queries, of_keys, all, of_row;  // units of a row: of all queries; of all keys; both; and of values
  DType table_type;
  bool wide_ids, wide_slots;
};

// The tables' columns from `at` on.
template <int kN>
__device__ void LoadTable(const void* table, int64_t at, DType type, float* to) {
  const auto load = [&](auto t) {
    using U = decltype(t);
    const auto v = *reinterpret_cast<const Vector<U, kN>*>(static_cast<const U*>(table) + at);
#pragma unroll
    for (int j = 0; j < kN; ++j) to[j] = ToFloat(v.v[j]);
  };
  if (type == DType::kF32) return load(float());
  type == DType::kF16 ? load(__half()) : load(__nv_bfloat16());
}

// Columns `first` and `second` of a head on, kN of each; those of pair j are at Low(j) and High(j) of the 2 kN.
template <class T, int kN, bool kInterleaved>
struct Columns {
  static __device__ constexpr int Low(int j) { return kInterleaved ? 2 * j : j; }
  static __device__ constexpr int High(int j) { return kInterleaved ? 2 * j + 1 : kN + j; }
  int first, second;
  Vector<T, kN> v[2];

  __device__ T& At(int i) { return v[i / kN].v[i % kN]; }
  __device__ void Turn(const Problem& p, int64_t position, int pair) {
    float c[2 * kN], s[2 * kN];
    Load(p, p.cos, position * p.cos_row, pair, c);
    Load(p, p.sin, position * p.sin_row, pair, s);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      T &low = At(Low(j)), &high = At(High(j));
      const float a = ToFloat(low), b = ToFloat(high);
      low = FromFloat<T>(__fadd_rn(__fmul_rn(a, c[Low(j)]), -__fmul_rn(b, s[Low(j)])));
      high = FromFloat<T>(__fadd_rn(__fmul_rn(b, c[High(j)]), __fmul_rn(a, s[High(j)])));
    }
  }

  // What a row of a table has for each column.
  __device__ void Load(const Problem& p, const void* table, int64_t row, int pair, float (&to)[2 * kN]) const {
    if (p.width == p.r) {
      LoadTable<kN>(table, row + first, p.table_type, to);
      LoadTable<kN>(table, row + second, p.table_type, to + kN);
      return;
    }
    float of_pair[kN];
    LoadTable<kN>(table, row + pair, p.table_type, of_pair);
#pragma unroll
    for (int j = 0; j < kN; ++j) to[Low(j)] = to[High(j)] = of_pair[j];
  }
};

template <class T>
inline constexpr DType kTypeOf = std::is_same_v<T, float>    ? DType::kF32
                                 : std::is_same_v<T, __half> ? DType::kF16
                                                             : DType::kBF16;

// kN elements into the cache, from element `at` on.
template <class T, int kN>
__device__ void Keep(const kv::PagedSide& s, int64_t at, int head, const Vector<T, kN>& v) {
  void* const cache = const_cast<void*>(s.cache);
  if (s.cache_type == kTypeOf<T> && s.scale == nullptr) {
    *reinterpret_cast<Vector<T, kN>*>(static_cast<T*>(cache) + at) = v;
    return;
  }
  const float scale = s.scale ? s.scale[head * s.scale_stride] : 1.0f;
  const bool coded = s.cache_type == DType::kI8 || s.cache_type == DType::kF8E4M3 || s.cache_type == DType::kF8E5M2;
  Vector<uint8_t, kN> codes;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    const float f = s.scale ? ToFloat(v.v[j]) / scale : ToFloat(v.v[j]);
    if (coded) {
      StoreFloat(codes.v, j, s.cache_type, f);
    } else {
      StoreFloating(cache, at + j, s.cache_type, f);
    }
  }
  if (coded) *reinterpret_cast<Vector<uint8_t, kN>*>(static_cast<uint8_t*>(cache) + at) = codes;
}

template <class T, int kN, bool kInterleaved>
__device__ void TurnUnit(const Problem& p, int64_t row, int64_t position, int64_t slot, bool kept, int unit) {
  const bool is_key = unit >= p.of_queries;
  if (is_key) unit -= p.of_queries;
  const int h = unit / p.of_head, of_head = unit - h * p.of_head;
  const T* x = is_key ? static_cast<const T*>(p.key.rows) + row * p.key.row + h * p.key.row_head
                      : static_cast<const T*>(p.query) + row * p.query_row + h * p.query_head;
  Columns<T, kN, kInterleaved> c;
  const bool turns = of_head < p.pairs;
  const int pair = of_head * kN;
  c.first = !turns ? p.r + (of_head - p.pairs) * kN : kInterleaved ? 2 * pair : pair;
  c.second = !turns ? c.first : kInterleaved ? c.first + kN : pair + p.r / 2;
  c.v[0] = *reinterpret_cast<const Vector<T, kN>*>(x + c.first);
  c.v[1] = *reinterpret_cast<const Vector<T, kN>*>(x + c.second);
  if (position < 0) {
#pragma unroll
    for (int i = 0; i < 2 * kN; ++i) c.At(i) = FromFloat<T>(nanf(""));
  } else if (turns) {
    c.Turn(p, position, pair);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = half == 0 ? c.first : c.second;
    if (half == 1 && !turns) break;
    if (is_key) {
      if (kept) Keep(p.key, kv::SlotOffset(p.key, slot) + h * p.key.head + column, h, c.v[half]);
    } else {
      *reinterpret_cast<Vector<T, kN>*>(static_cast<T*>(p.out) + row * p.out_row + h * p.out_head + column) = c.v[half];
    }
  }
}

template <class T, int kN, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) RopeAppend(const Problem p) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  for (int64_t row = blockIdx.x; row < p.n; row += gridDim.x) {
    const int64_t slot = LoadIndex(p.slots, row * p.slot_stride, p.wide_slots);
    int64_t position = p.ids ? LoadIndex(p.ids, row * p.id_stride, p.wide_ids) : row;
    if (position >= p.table_rows) position = -1;
    const bool kept = slot >= 0 && slot < p.key.slots;  // asked late: what is stored is loaded while the slot is
    for (int unit = int(blockIdx.y * kThreads + threadIdx.x); unit < p.of_row; unit += int(gridDim.y * kThreads)) {
      if (unit < p.all) {
        TurnUnit<T, kN, kInterleaved>(p, row, position, slot, kept, unit);
      } else {
        const int of_head = p.value.width / kN, h = (unit - p.all) / of_head, j = (unit - p.all - h * of_head) * kN;
        const T* x = static_cast<const T*>(p.value.rows) + row * p.value.row + h * p.value.row_head + j;
        const auto v = *reinterpret_cast<const Vector<T, kN>*>(x);
        if (kept) Keep(p.value, kv::SlotOffset(p.value, slot) + h * p.value.head + j, h, v);
      }
    }
  }
}

template <class T, int kN>
int32_t Run(Problem p, int32_t heads, int32_t d, bool interleaved, cudaStream_t stream) {
  p.pairs = p.r / 2 / kN;
  p.of_head = p.pairs + (d - p.r) / kN;
  p.of_queries = heads * p.of_head;
  p.of_keys = p.key.heads * p.of_head;
  p.all = p.of_queries + p.of_keys;
  p.of_row = p.all + p.value.heads * (p.value.width / kN);
  if (p.of_row == 0) return 0;
  const int64_t parts = p.n < kManyRows ? (p.of_row + kThreads - 1) / kThreads : 1;
  const dim3 grid(unsigned(p.n < int64_t{1} << 30 ? p.n : int64_t{1} << 30),
                  unsigned(parts < kMaxGridY ? parts : kMaxGridY));
  const auto kernel = interleaved ? &RopeAppend<T, kN, true> : &RopeAppend<T, kN, false>;
  return LaunchDependent(kernel, {.grid = grid, .block = dim3(kThreads), .stream = stream}, p);
}

// Whether groups of `lanes` columns begin at multiples of 16 bytes, or of their own size where that is less.
bool IsWide(const Problem& p, int32_t d, int lanes) {
  if (!Aligned(p.query, p.out, p.cos, p.sin, p.key.rows, p.key.cache, p.value.rows, p.value.cache)) return false;
  for (const int64_t n : {p.query_row, p.query_head, p.out_row, p.out_head, p.cos_row, p.sin_row, int64_t(p.r / 2),
                          int64_t(d - p.r), int64_t(p.value.width)}) {
    if (n % lanes != 0) return false;
  }
  for (const kv::PagedSide* s : {&p.key, &p.value}) {
    for (const int64_t n : {s->row, s->row_head, s->block, s->slot, s->head}) {
      if (n % lanes != 0) return false;
    }
  }
  return true;
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &query = t[kQuery], &out = t[kOutput], &ids = t[kPositionIds];
  Problem p = {.query = Data<void>(query),
               .cos = Data<void>(t[kCos]),
               .sin = Data<void>(t[kSin]),
               .ids = Given(ids) ? Data<void>(ids) : nullptr,
               .slots = Data<void>(t[kSlots]),
               .out = Data<void>(out),
               .key = kv::SideOf(t[kKey], t[kKeyCache], &t[kKScale]),
               .value = kv::SideOf(t[kValue], t[kValueCache], &t[kVScale]),
               .query_row = query.strides[0],
               .query_head = query.strides[1],
               .out_row = out.strides[0],
               .out_head = out.strides[1],
               .cos_row = t[kCos].strides[0],
               .sin_row = t[kSin].strides[0],
               .id_stride = Given(ids) ? ids.strides[0] : 0,
               .slot_stride = t[kSlots].strides[0],
               .n = query.shape[0],
               .table_rows = t[kCos].shape[0],
               .r = int32_t(args->scalars[kRotaryDim].value.i),
               .width = int32_t(t[kCos].shape[1]),
               .table_type = DTypeOf(t[kCos]),
               .wide_ids = DTypeOf(ids) == DType::kI64,
               .wide_slots = DTypeOf(t[kSlots]) == DType::kI64};
  if (p.n == 0) return 0;
  const auto heads = int32_t(query.shape[1]), d = int32_t(query.shape[2]);
  p.key.heads = int32_t(t[kKey].shape[1]), p.key.width = d;  // heads turn one by one
  return WithCudaFloat(DTypeOf(query), [&](auto type) {
    using T = decltype(type);
    constexpr int kN = kLanes<T>;
    const bool interleaved = args->scalars[kInterleaved].value.i != 0;
    const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
    return IsWide(p, d, kN) ? Run<T, kN>(p, heads, d, interleaved, stream)
                            : Run<T, 1>(p, heads, d, interleaved, stream);
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"cos.dtype", Rel::kInMask, kF32F16BF16},
    {"h * d", Rel::kLe, int64_t{1} << 28},
    {"h_kv * d", Rel::kLe, int64_t{1} << 28},
    {"h_kv * d_v", Rel::kLe, int64_t{1} << 28},
});
constexpr std::array kFamily = {
    CudaSpec("cuda.kv.rope_append_paged", &Launch, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
