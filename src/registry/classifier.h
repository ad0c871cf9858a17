// Which calls are alike under every rule that a kernel, variant or policy states about an operation. Exact slots are
// compared under the mask of bits that some rule reads; range slots are split at every threshold of a rule. Two calls
// of one class satisfy the same rules, so a plan that is cached under a class is never invalid.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/facts.h"
#include "registry/operation.h"

namespace lz {

// A rule that no slot can represent: an expression of axes, a divisibility, or a comparison with a fact of the device.
// Its truth is one bit of the predicate slots.
struct Predicate {
  Expression expression;
  Rel rel;
  int64_t operand;
  std::vector<int64_t> set;
  int16_t fact = -1;  // as Row::fact, of the device

  bool is_free() const { return expression.text().empty(); }  // no row refers to it
};

// One rule, resolved: `field` of the operation, or a predicate if predicate >= 0.
struct Row {
  std::string field_name;
  uint16_t field = 0;
  int16_t predicate = -1;
  Rel rel = Rel::kEq;
  ReasonCode code = ReasonCode::kConstraintFailed;
  int64_t operand = 0;
  std::vector<int64_t> set;
  int16_t fact = -1;              // the field of the device or the policy that replaces `operand`, or -1
  int16_t contiguous_input = -1;  // holds after a contiguous copy of this input
};

bool Holds(Rel rel, int64_t value, int64_t operand, std::span<const int64_t> set);

class Classifier {
 public:
  Classifier(const Operation& op, int32_t generation);

  void Add(const Operation& op, const Row& row);
  void Finish();  // call it after the last Add

  int32_t generation() const { return generation_; }
  const int32_t* masks() const { return masks_.data(); }            // masks of exact slots; -1 for range slots
  const int32_t* is_exact() const { return is_exact_.data(); }      // -1 or 0
  const int32_t* thresholds() const { return transposed_.data(); }  // [num_thresholds()][32], ascending in each slot
  int num_thresholds() const { return int(transposed_.size() / kFactSlots); }
  uint32_t predicates_used(int word) const { return uint32_t(masks_[size_t(kSlotPredicates0) + size_t(word)]); }

  // The class of `facts` as the range of all facts in it, both ends inclusive.
  void RangeOf(const Facts& facts, Facts* lo, Facts* hi) const;

 private:
  int32_t generation_;
  alignas(64) std::array<int32_t, kFactSlots> masks_{};
  alignas(64) std::array<int32_t, kFactSlots> is_exact_{};
  std::array<std::vector<int32_t>, kFactSlots> cuts_;
  std::vector<int32_t> transposed_;
};

}  // namespace lz
