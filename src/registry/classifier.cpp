#include "registry/classifier.h"

#include <algorithm>
#include <limits>

namespace lz {
namespace {
constexpr int64_t kMax32 = std::numeric_limits<int32_t>::max(), kMin32 = std::numeric_limits<int32_t>::min();
}

bool Holds(Rel rel, int64_t value, int64_t operand, std::span<const int64_t> set) {
  switch (rel) {
    case Rel::kEq: return value == operand;
    case Rel::kNe: return value != operand;
    case Rel::kGe: return value >= operand;
    case Rel::kGt: return value > operand;
    case Rel::kLe: return value <= operand;
    case Rel::kLt: return value < operand;
    case Rel::kMultipleOf: return operand != 0 && value % operand == 0;
    case Rel::kInMask: return value >= 0 && value < 63 && (operand >> value & 1);
    case Rel::kInSet: return std::find(set.begin(), set.end(), value) != set.end();
    case Rel::kHasBits: return (value & operand) == operand;
    case Rel::kLacksBits: return (value & operand) == 0;
  }
  return false;
}

Classifier::Classifier(const Operation& op, int32_t generation) : generation_(generation) {
  for (size_t slot = 0; slot < op.first_axis_slot(); ++slot) is_exact_[slot] = -1;
  masks_[kSlotGeneration] = masks_[kSlotDevice] = masks_[kSlotPolicy] = -1;
  for (size_t slot = op.first_axis_slot(); slot < kFactSlots; ++slot) masks_[slot] = -1;
  for (size_t i = 0; i < op.num_inputs(); ++i) {  // plans depend on it
    if (op.promotes(i)) masks_[kFirstTensorSlot + i] |= kTensorCast;
  }
}

void Classifier::Add(const Operation& op, const Row& row) {
  if (row.predicate >= 0) {
    masks_[size_t(kSlotPredicates0) + size_t(row.predicate / 32)] |= int32_t(1u << (row.predicate % 32));
    return;
  }
  const Field& field = op.fields()[row.field];
  if (field.home != FieldHome::kSlot) return;  // a property of the device or the policy, which are exact slots
  if (is_exact_[field.slot]) {
    masks_[field.slot] |= field.mask;
    return;
  }
  std::vector<int32_t>& cuts = cuts_[field.slot];
  const auto cut = [&](int64_t v) {
    if (v > kMin32 && v <= kMax32) cuts.push_back(int32_t(v));
  };
  const auto point = [&](int64_t v) { cut(v), cut(v + 1); };
  if (row.fact >= 0) {  // any value of the choice may be the policy's
    for (int64_t v = 0; !ChoiceName(field.choices, v).empty(); ++v) point(v);
    return;
  }
  switch (row.rel) {
    case Rel::kEq:
    case Rel::kNe: point(row.operand); break;
    case Rel::kGe:
    case Rel::kLt: cut(row.operand); break;
    case Rel::kGt:
    case Rel::kLe: cut(row.operand + 1); break;
    case Rel::kInSet:
      for (int64_t v : row.set) point(v);
      break;
    case Rel::kInMask:
      for (int64_t v = 0; v < 63; ++v) {
        if (row.operand >> v & 1) point(v);
      }
      break;
    case Rel::kMultipleOf:
    case Rel::kHasBits:
    case Rel::kLacksBits: break;  // made predicates when the row was resolved
  }
}

void Classifier::Finish() {
  size_t most = 0;
  for (std::vector<int32_t>& cuts : cuts_) {
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    most = std::max(most, cuts.size());
  }
  transposed_.assign(most * kFactSlots, int32_t(kMax32));
  for (size_t slot = 0; slot < kFactSlots; ++slot) {
    for (size_t i = 0; i < cuts_[slot].size(); ++i) transposed_[i * kFactSlots + slot] = cuts_[slot][i];
  }
}

void Classifier::RangeOf(const Facts& facts, Facts* lo, Facts* hi) const {
  for (size_t slot = 0; slot < kFactSlots; ++slot) {
    const int32_t v = facts.v[slot];
    lo->v[slot] = hi->v[slot] = v;
    if (is_exact_[slot]) continue;
    const std::vector<int32_t>& cuts = cuts_[slot];
    const auto above = std::upper_bound(cuts.begin(), cuts.end(), v);
    lo->v[slot] = above == cuts.begin() ? int32_t(kMin32) : *(above - 1);
    hi->v[slot] = above == cuts.end() ? int32_t(kMax32) : *above - 1;
    // Slots with fewer thresholds than the longest one are padded with the largest value, which is therefore a class of
    // its own.
    const bool padded = cuts.size() < size_t(num_thresholds());
    if (padded && v == kMax32) lo->v[slot] = int32_t(kMax32);
    if (padded && v != kMax32 && above == cuts.end()) hi->v[slot] = int32_t(kMax32 - 1);
  }
}

}  // namespace lz
