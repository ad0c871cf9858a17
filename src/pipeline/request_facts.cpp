#include "pipeline/request_facts.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/reclaimer.h"
#include "platform/device.h"

namespace lz {
namespace {

int32_t AlignmentCode(const lz_tensor& t, int64_t item_size) {
  uint64_t bits = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
  for (int i = 0; i + 1 < t.ndim; ++i) {
    if (t.shape[i] > 1) bits |= uint64_t(t.strides[i] * item_size);
  }
  return bits == 0 ? 7 : std::min(7, std::countr_zero(bits));
}

bool RowsDense(const lz_tensor& t) {
  const int last = t.ndim - 1;
  if (last < 0 || t.strides[last] == 1 || t.shape[last] == 1) return true;
  return std::find(t.shape, t.shape + t.ndim, 0) != t.shape + t.ndim;  // an empty tensor has no elements
}

int32_t TensorWord(const lz_tensor& t, DType first_dtype, int32_t used) {
  if (t.ndim < 0) {
    return kTensorLastDimStride1 | kTensorContiguous | kTensorSameDType | kTensorOneElement | kTensorColumnsDense |
           7 << kTensorAlignmentShift;
  }
  const DType dtype = DTypeOf(t);
  int32_t word = int32_t(dtype) | kTensorGiven | t.ndim << kTensorNdimShift;
  if (dtype == first_dtype) word |= kTensorSameDType;
  int64_t expected = 1;
  bool contiguous = true, broadcast = false, empty = false;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] == 0) empty = true;
    if (t.shape[i] == 1) continue;
    contiguous &= t.strides[i] == expected;
    broadcast |= t.strides[i] == 0;
    expected *= t.shape[i];
  }
  if (contiguous || empty) word |= kTensorContiguous;
  if (broadcast) word |= kTensorBroadcast;
  if (expected == 1) word |= kTensorOneElement;
  if (RowsDense(t)) word |= kTensorLastDimStride1;
  if (t.ndim > 1 && (empty || t.shape[t.ndim - 2] == 1 || t.strides[t.ndim - 2] == 1)) word |= kTensorColumnsDense;
  if (used & kTensorAlignmentMask) word |= AlignmentCode(t, ByteSize(dtype)) << kTensorAlignmentShift;
  return word;
}

// A cast makes a dense copy.
int32_t CastTensorWord(const lz_tensor& t, DType promoted, DType first_dtype) {
  const bool one = std::all_of(t.shape, t.shape + t.ndim, [](int64_t size) { return size == 1; });
  const bool one_column = t.ndim > 1 && t.shape[t.ndim - 2] == 1;
  return int32_t(promoted) | kTensorGiven | (one_column ? kTensorColumnsDense : 0) | (one ? kTensorOneElement : 0) |
         kTensorCast | kTensorLastDimStride1 | kTensorContiguous | (promoted == first_dtype ? kTensorSameDType : 0) |
         6 << kTensorAlignmentShift | t.ndim << kTensorNdimShift;
}

int64_t FactOf(const BoundCall& r, const Predicate& p) {
  const Device& device = r.machine ? *r.machine : HostCpu();
  return device.facts[r.op->fields()[size_t(p.fact)].slot];
}

int32_t Saturate(int64_t v) {
  return int32_t(std::clamp<int64_t>(v, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
}

}  // namespace

DType EffectiveDType(const BoundCall& r, size_t input) {
  const bool mixed = r.promoted != DType::kUnknown && r.op->promotes(input);
  return mixed ? r.promoted : DTypeOf(r.tensors[input]);
}

std::map<std::string, std::string> OptionsOf(const BoundCall& r) {
  const Operation& op = *r.op;
  std::map<std::string, std::string> options;
  const DType first = op.num_inputs() ? EffectiveDType(r, 0) : DType::kUnknown;
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    if (r.tensors[i].ndim < 0) continue;
    if (op.input(i).optional) options.emplace(op.input(i).name, "given");
    const DType dtype = EffectiveDType(r, i);
    const bool may_be_wide = op.input(i).dtypes >> size_t(first) & 1;
    if (may_be_wide && ByteSize(dtype) == 1 && ByteSize(first) > 1) {
      options.emplace(std::string(op.input(i).name) + ".dtype", Info(dtype).name);
    }
    if (!RowsDense(r.tensors[i])) options.emplace(std::string(op.input(i).name) + ".last_dim_stride1", "false");
  }
  for (size_t i = 0; i < op.num_scalars(); ++i) {
    const Param& p = op.scalar(i);
    const int64_t value = r.scalars[i].value.i;
    const bool usual = p.has_default && value == p.int_default;
    if (p.kind == ParamKind::kBool || p.kind == ParamKind::kChoice) {
      if (!r.scalars[i].given || usual) continue;
      options.emplace(p.name, p.kind == ParamKind::kChoice ? ChoiceName(p.choices, value) : value ? "true" : "false");
    } else if (p.optional && (r.scalars_given >> op.scalar_given_bit(i) & 1)) {
      options.emplace(p.name, "given");
    }
  }
  return options;
}

void RefreshFacts(BoundCall& r) {
  const Reclaimer::Guard guard;
  const Operation& op = *r.op;
  const OperationState& state = op.state();
  const int32_t* masks = state.classifier.masks();
  r.state = &state;
  int32_t* v = r.facts.v;
  std::fill_n(v, kFactSlots, 0);
  v[kSlotGeneration] = state.classifier.generation();
  v[kSlotDevice] = r.device;
  v[kSlotPolicy] = int32_t(r.policy);
  v[kSlotFlags] = (int32_t(r.flags & 3) | r.layout << kFlagLayoutShift) & masks[kSlotFlags];
  const DType first = op.num_inputs() ? EffectiveDType(r, 0) : DType::kUnknown;
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    const size_t slot = kFirstTensorSlot + i;
    const int32_t word = r.cast_inputs >> i & 1 ? CastTensorWord(r.tensors[i], r.promoted, first)
                                                : TensorWord(r.tensors[i], first, masks[slot]);
    v[slot] = word & masks[slot];
  }
  for (size_t i = 0; i < op.axes().size(); ++i) v[op.first_axis_slot() + i] = Saturate(r.variables[i]);
  for (size_t i = 0; i < op.derived().size(); ++i) {
    const int64_t value = op.derived()[i].Evaluate(r.variables.data());
    r.variables[kMaxAxes + kMaxScalars + i] = value;
    v[op.first_derived_slot() + i] = Saturate(value);
  }
  int32_t scalar_word = r.scalars_given;
  for (size_t i = 0; i < op.num_scalars(); ++i) {
    const ParamKind kind = op.scalar(i).kind;
    if ((kind == ParamKind::kBool || kind == ParamKind::kChoice) && r.scalars[i].given) {
      scalar_word |= int32_t(r.scalars[i].value.i) << op.scalar_value_shift(i);
    }
  }
  v[kSlotScalars] = scalar_word & masks[kSlotScalars];
  for (const auto& [scalar, slot] : op.int_scalar_slots()) {
    v[slot] = r.scalars[scalar].given ? Saturate(r.scalars[scalar].value.i) : -1;
  }
  for (size_t i = 0; i < state.predicates.size(); ++i) {
    if (!(state.classifier.predicates_used(int(i / 32)) >> (i % 32) & 1)) continue;
    const Predicate& p = state.predicates[i];
    const int64_t operand = p.fact < 0 ? p.operand : FactOf(r, p);
    if (Holds(p.rel, p.expression.Evaluate(r.variables.data()), operand, p.set)) {
      v[kSlotPredicates0 + i / 32] |= int32_t(1u << (i % 32));
    }
  }
}

int64_t RowValue(const BoundCall& r, const Row& row, const Surroundings& around) {
  if (row.predicate >= 0) return r.state->predicates[size_t(row.predicate)].expression.Evaluate(r.variables.data());
  const Field& f = r.op->fields()[row.field];
  switch (f.home) {
    case FieldHome::kDevice: return around.device[f.slot];
    case FieldHome::kPolicy: return around.policy[f.slot];
    case FieldHome::kSlot: break;
  }
  const int32_t v = r.facts.v[f.slot];
  return f.mask == -1 ? v : int64_t(uint32_t(v & f.mask) >> f.shift);
}

int64_t RowOperand(const BoundCall& r, const Row& row, const Surroundings& around) {
  if (row.fact < 0) return row.operand;
  const Field& f = r.op->fields()[size_t(row.fact)];
  return (f.home == FieldHome::kDevice ? around.device : around.policy)[f.slot];
}

bool RowHolds(const BoundCall& r, const Row& row, const Surroundings& around) {
  if (row.predicate >= 0) return r.facts.v[kSlotPredicates0 + row.predicate / 32] >> (row.predicate % 32) & 1;
  return Holds(row.rel, RowValue(r, row, around), RowOperand(r, row, around), row.set);
}

}  // namespace lz
