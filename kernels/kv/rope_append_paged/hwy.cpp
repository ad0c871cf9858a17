// kv.rope_append_paged on the CPU, SIMD: a position's row of the tables is converted once and turns all of its heads;
// keys go to the cache head by head.
//   query [n, h, d]  key [n, h_kv, d]  value [n, h_kv, d_v]  f32|f16|bf16, last dim dense, d <= 1024
//   cos, sin [t, w]  f32|f16|bf16, rows dense     slots, position_ids [n]  i32|i64
//   key_cache, value_cache [blocks, block_size, h_kv, d]  query's dtype, or int8|e4m3|e5m2; written in place
//   output [n, h, d]  may alias query             k_scale, v_scale [h_kv]  f32, of 8-bit caches
// Workspace: none. Deterministic for distinct slots. A slot outside the cache or a position outside the tables: nothing
// is written. Source: own; formula from arXiv:2104.09864 eq. 34.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv/rope_append_paged/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/joined.h"
#include "kernels/kv/hwy_codes.h"
#include "kernels/kv/rows.h"
#include "kernels/posenc/hwy_rotate.h"
#include "kernels/simd.h"
#include "kernels/spec.h"
#include "ops/kv/rope_append_paged.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::kv_rope_append_paged;

struct AsTheyAre {};  // keys and values have the cache's dtype

template <class To, class T>
struct NewRows {
  explicit NewRows(const lz_kernel_args* args)
      : t(args->tensors),
        form{.d = t[kQuery].shape[2],
             .r = args->scalars[kRotaryDim].value.i,
             .width = t[kCos].shape[1],
             .interleaved = args->scalars[kInterleaved].value.i != 0,
             .sign = 1.0f} {}

  // The head `h` of a slot.
  template <class Stored>
  static Stored* Head(const lz_tensor& cache, int64_t slot, int64_t h) {
    const int64_t size = cache.shape[1];
    return Data<Stored>(cache) + slot / size * cache.strides[0] + slot % size * cache.strides[1] + h * cache.strides[2];
  }
  void Queries(int64_t i, const Factors& f) const {
    const lz_tensor &x = t[kQuery], &out = t[kOutput];
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      RotateHead(Data<const T>(x) + i * x.strides[0] + h * x.strides[1],
                 Data<T>(out) + i * out.strides[0] + h * out.strides[1], form, f);
    }
  }
  void KeysAndValues(int64_t i, int64_t slot, const Factors& f) const {
    const lz_tensor &key = t[kKey], &value = t[kValue];
    const View k_scale(t[kKScale]), v_scale(t[kVScale]);
    for (int64_t h = 0; h < key.shape[1]; ++h) {
      const T* k = Data<const T>(key) + i * key.strides[0] + h * key.strides[1];
      const T* v = Data<const T>(value) + i * value.strides[0] + h * value.strides[1];
      if constexpr (std::is_same_v<To, AsTheyAre>) {
        RotateHead(k, Head<T>(t[kKeyCache], slot, h), form, f);
        if (value.shape[2] > 0) std::memcpy(Head<T>(t[kValueCache], slot, h), v, size_t(value.shape[2]) * sizeof(T));
      } else {
        T turned[kMaxHeadDim];
        RotateHead(k, turned, form, f);
        StoreRow<To>(turned, form.d, ops::kv::ScaleOf(k_scale, h), Head<uint8_t>(t[kKeyCache], slot, h));
        StoreRow<To>(v, value.shape[2], ops::kv::ScaleOf(v_scale, h), Head<uint8_t>(t[kValueCache], slot, h));
      }
    }
  }

  const lz_tensor* t;
  Form form;
};

template <class To, class T>
void Run(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const NewRows<To, T> rows(args);
  const kv::SlotReader slot(t[kSlots]);
  const bool by_id = t[kPositionIds].ndim >= 0;
  const kv::SlotReader ids(by_id ? t[kPositionIds] : t[kSlots]);
  const int64_t of_row = (t[kQuery].shape[1] + t[kKey].shape[1]) * (rows.form.d + 1);
  // 16k elements take about 2 us on one core: less does not pay for waking another thread.
  ParallelFor(args, t[kQuery].shape[0], 16384 / (of_row + 1) + 1, [&](int64_t begin, int64_t end) {
    Factors f;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = by_id ? ids[i] : i;
      WithFloatType(DTypeOf(t[kCos]), [&](auto type) {
        using U = decltype(type);
        MakeFactors(Data<const U>(t[kCos]) + at * t[kCos].strides[0], Data<const U>(t[kSin]) + at * t[kSin].strides[0],
                    rows.form, &f);
      });
      OrderFactors<T>(rows.form, &f);
      rows.Queries(i, f);
      if (slot[i] >= 0) rows.KeysAndValues(i, slot[i], f);
    }
  });
}

int32_t RunTarget(const lz_kernel_args* args) {
  const DType cache = DTypeOf(args->tensors[kKeyCache]);
  WithFloatType(DTypeOf(args->tensors[kQuery]), [&](auto type) {
    using T = decltype(type);
    switch (cache) {
      case DType::kI8: return Run<Int8, T>(args);
      case DType::kF8E4M3: return Run<E4M3, T>(args);
      case DType::kF8E5M2: return Run<E5M2, T>(args);
      default: return Run<AsTheyAre, T>(args);
    }
  });
  return 0;
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
using namespace lz::ops::kv_rope_append_paged;
HWY_EXPORT(RunTarget);

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &ids = t[kPositionIds];
  const kv::SlotReader slot(t[kSlots]);
  if (!slot.AllBelow(args->axes[kBlocks] * args->axes[kBlockSize])) return ops::kv::kSlotOutOfRange;
  for (int64_t i = 0; ids.ndim >= 0 && i < ids.shape[0]; ++i) {
    const int64_t id = kv::SlotReader(ids)[i];
    if (id < 0 || id >= args->axes[kT]) return ops::posenc_rope::kPositionOutOfRange;
  }
  return HWY_DYNAMIC_DISPATCH(RunTarget)(args);
}

constexpr auto kCalls = std::to_array<Constraint>({{"d", Rel::kLe, 1024}, {"cos.dtype", Rel::kInMask, kF32F16BF16}});
constexpr auto kSame = Joined(kCalls, {{"key_cache.same_dtype", Rel::kEq, 1}});
constexpr auto kCoded =
    Joined(kCalls, {{"key_cache.dtype", Rel::kInMask, Mask(DType::kI8, DType::kF8E4M3, DType::kF8E5M2)}});
constexpr std::array<std::string_view, 4> kAccepts = {"position_ids", "rotary_dim", "k_scale", "v_scale"};
constexpr std::array kFamily = {
    CpuSpec("hwy.kv.rope_append_paged", &Launch, {.constraints = kSame, .accepts = std::span(kAccepts).first(2)}),
    CpuSpec("hwy.kv.rope_append_paged.coded", &Launch,
            {.operation = "kv.rope_append_paged", .constraints = kCoded, .accepts = kAccepts})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
