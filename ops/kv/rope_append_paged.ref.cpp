// Reference of kv.rope_append_paged: element by element, any strides; queries in FP64, keys rounded as defined.
#include "ops/kv/rope_append_paged.h"

#include <vector>

#include "ops/common/kv_write.h"
#include "ops/common/reference.h"
#include "ops/common/rope.h"

namespace {
using namespace lz;
using namespace lz::ops::kv_rope_append_paged;

struct Tables {
  View cos, sin;
  int64_t row, rotary_dim;
  bool interleaved;
};

// store(head, column, value) for row i of x [n, h, d], computed in C.
template <class C, class Store>
void Rotate(const View& x, int64_t i, const Tables& tables, Store&& store) {
  const int64_t r = tables.rotary_dim;
  const auto cos = [&](int64_t column) { return C(tables.cos.Get({tables.row, column})); };
  const auto sin = [&](int64_t column) { return C(tables.sin.Get({tables.row, column})); };
  for (int64_t h = 0; h < x.size(1); ++h) {
    for (int64_t pair = 0; pair < r / 2; ++pair) {
      const auto p = ops::posenc_rope::PairAt(pair, r, tables.cos.size(1), tables.interleaved);
      const C xj = C(x.Get({i, h, p.j})), xk = C(x.Get({i, h, p.k}));
      const C turned_j = xj * cos(p.tj), other_j = xk * sin(p.tj), turned_k = xk * cos(p.tk), other_k = xj * sin(p.tk);
      store(h, p.j, turned_j - other_j);
      store(h, p.k, turned_k + other_k);
    }
    for (int64_t column = r; column < x.size(2); ++column) store(h, column, C(x.Get({i, h, column})));
  }
}

// One row [1, h, d] of memory of its own.
class Row {
 public:
  explicit Row(const View& like)
      : shape_{1, like.size(1), like.size(2)}, strides_{shape_[1] * shape_[2], shape_[2], 1} {
    const DTypeInfo& info = Info(like.dtype());
    memory_.resize(size_t(strides_[0] * ByteSize(like.dtype()) / 8 + 1));
    tensor_ = {memory_.data(), {1, 0}, 3, {info.dlpack_code, info.bits, info.lanes}, shape_, strides_, 0};
  }
  View view() const { return View(tensor_); }

 private:
  int64_t shape_[3], strides_[3];
  std::vector<uint64_t> memory_;
  lz_tensor tensor_;
};

bool PositionsValid(const View& ids, int64_t rows) {
  for (int64_t i = 0; ids.given() && i < ids.size(0); ++i) {
    if (ids.GetInt({i}) < 0 || ids.GetInt({i}) >= rows) return false;
  }
  return true;
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const View slots(t[kSlots]), ids(t[kPositionIds]), query(t[kQuery]), key(t[kKey]), value(t[kValue]), out(t[kOutput]);
  const View keys(t[kKeyCache]), values(t[kValueCache]), k_scale(t[kKScale]), v_scale(t[kVScale]);
  if (!ops::kv::SlotsValid(slots, keys.size(0) * keys.size(1))) return ops::kv::kSlotOutOfRange;
  if (!PositionsValid(ids, args->axes[kT])) return ops::posenc_rope::kPositionOutOfRange;
  const Row turned(key);
  for (int64_t i = 0; i < query.size(0); ++i) {
    const Tables tables = {View(t[kCos]), View(t[kSin]), ids.given() ? ids.GetInt({i}) : i,
                           args->scalars[kRotaryDim].value.i, args->scalars[kInterleaved].value.i != 0};
    Rotate<double>(query, i, tables, [&](int64_t h, int64_t column, double v) { out.Set({i, h, column}, v); });
    const int64_t slot = slots.GetInt({i});
    if (slot < 0) continue;
    const auto keep = [&](int64_t h, int64_t column, auto v) { turned.view().Set({0, h, column}, double(v)); };
    if (key.dtype() == DType::kF64) {
      Rotate<double>(key, i, tables, keep);
    } else {
      Rotate<float>(key, i, tables, keep);
    }
    ops::kv::WriteRow(keys, turned.view(), k_scale, 0, slot);
    ops::kv::WriteRow(values, value, v_scale, i, slot);
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.kv.rope_append_paged", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
