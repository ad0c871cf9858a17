// A constraint of a kernel, a variant or a policy as a Row: its field, its reason code, its predicate if it needs one.
#include <algorithm>
#include <limits>

#include "platform/device.h"
#include "registry/registry.h"

namespace lz {
namespace {

// The field that a condition compares with in place of a number. All calls of a class must agree on the result: numbers
// of a call are compared with facts of its device by a predicate, and only exact fields and choices with the policy's.
Result<int16_t> ResolveFact(const Operation& op, const Constraint& c, const Field* field) {
  const auto wrong = [&](std::string wanted) {
    return Status(StatusCode::kConfig,
                  {.field = std::string(c.field), .wanted = std::move(wanted), .got = "'" + std::string(c.fact) + "'"});
  };
  const std::optional<uint16_t> index = op.FindField(c.fact);
  const FieldHome home = index ? op.fields()[*index].home : FieldHome::kSlot;
  if (home == FieldHome::kSlot) return wrong("a fact of the device or the policy");
  if (c.rel == Rel::kInSet || c.operand != 0) return wrong("a fact alone, without a set or an operand");
  if (home == FieldHome::kPolicy && (!field || (field->is_range() && field->type != FieldType::kChoice))) {
    return wrong("a fact of the device: a call's numbers are not compared with those of the policy");
  }
  return int16_t(*index);
}

}  // namespace

ReasonCode DefaultCode(const Operation& op, std::string_view name, Rel rel) {
  const bool below = rel == Rel::kGe || rel == Rel::kGt || rel == Rel::kHasBits || rel == Rel::kEq ||
                     rel == Rel::kInMask || rel == Rel::kInSet;
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  if (name.starts_with("device.")) {
    for (const DeviceFieldInfo& info : kDeviceFields) {
      if (name.substr(7) == info.name) return below ? info.below : info.above;
    }
  }
  if (name == "d_qk" || name == "d_v" || name == "head_dim" || name == "d") {
    return rel == Rel::kMultipleOf              ? ReasonCode::kHeadDimAlignment
           : rel == Rel::kLe || rel == Rel::kLt ? ReasonCode::kHeadDimTooLarge
                                                : ReasonCode::kHeadDimInvalid;
  }
  if (name == "s_q" || name == "s_kv") {
    return rel == Rel::kLe || rel == Rel::kLt ? ReasonCode::kSeqTooLong : ReasonCode::kShapeUnsupported;
  }
  if (name == "group" && op.ResolveVariable("h_kv")) {
    return rel == Rel::kEq || rel == Rel::kLe ? ReasonCode::kGqaUnsupported : ReasonCode::kGqaHeadsMismatch;
  }
  if (name == "requires_grad") return ReasonCode::kGradUnsupported;
  if (name == "capturing") return ReasonCode::kCudaGraphUnsafe;
  if (name == "layout") return ReasonCode::kLayoutUnsupported;
  if (name == "policy.deterministic") return ReasonCode::kNonDeterministic;
  if (name == "policy.tp.size") return ReasonCode::kTpSizeExceeded;
  if (name == "policy.tp.reduction_order") return ReasonCode::kReductionOrderMismatch;
  if (name == "policy.tp.require_tp_invariant") return ReasonCode::kTpInvarianceRequired;
  if (name == "policy.kv_cache.strategy") return ReasonCode::kKvStrategyUnsupported;
  if (ends("dtype")) return ReasonCode::kDtypeUnsupported;
  if (ends(".contiguous")) return ReasonCode::kNotContiguous;
  if (ends(".last_dim_stride1")) return ReasonCode::kStrideLastDim;
  if (ends(".columns_dense")) return ReasonCode::kLayoutUnsupported;
  if (ends(".alignment")) return ReasonCode::kAlignment;
  if (name.starts_with("attn_mask.")) return ReasonCode::kAttnMaskUnsupported;
  if (name.starts_with("dropout_p")) return ReasonCode::kDropoutUnsupported;
  if (name.starts_with("scale.") || name.starts_with("sm_scale.")) return ReasonCode::kScaleUnsupported;
  if (ends(".given")) return ReasonCode::kArgumentUnsupported;
  if (ends(".broadcast") || ends(".ndim")) return ReasonCode::kLayoutUnsupported;
  if (ends(".one_element")) return ReasonCode::kShapeUnsupported;
  if (op.ScalarIndex(name)) return ReasonCode::kArgumentUnsupported;
  if (op.ResolveVariable(name)) return ReasonCode::kShapeUnsupported;
  for (const DerivedFact& fact : op.contract().derived) {
    if (fact.name == name) return ReasonCode::kShapeUnsupported;
  }
  return ReasonCode::kConstraintFailed;
}

Result<Row> Registry::Resolve(const Operation& op, const Constraint& c, std::vector<Predicate>* predicates) {
  Row row;
  row.field_name = std::string(c.field);
  row.rel = c.rel;
  row.operand = c.operand;
  row.set.assign(c.set.begin(), c.set.end());
  row.code = c.code == ReasonCode::kAuto ? DefaultCode(op, c.field, c.rel) : c.code;
  if (c.field.ends_with(".contiguous") || c.field.ends_with(".last_dim_stride1")) {
    const auto input = op.InputIndex(c.field.substr(0, c.field.rfind('.')));
    // A write in place would go to the copy.
    if (input && !op.input(*input).mutated) row.contiguous_input = int16_t(*input);
  }
  const std::optional<uint16_t> field = op.FindField(c.field);
  if (!c.fact.empty()) {
    auto fact = ResolveFact(op, c, field ? &op.fields()[*field] : nullptr);
    if (!fact.ok()) return fact.TakeStatus();
    row.fact = *fact;
  }
  const auto fits = [](int64_t v) {
    return v > std::numeric_limits<int32_t>::min() && v < std::numeric_limits<int32_t>::max();
  };
  if (field) {
    row.field = *field;
    const bool bits = c.rel == Rel::kMultipleOf || c.rel == Rel::kHasBits || c.rel == Rel::kLacksBits;
    const bool of_device = row.fact >= 0 && op.fields()[size_t(row.fact)].home == FieldHome::kDevice;
    const bool awkward = of_device || bits || !fits(c.operand) ||
                         std::any_of(row.set.begin(), row.set.end(), [&](int64_t v) { return !fits(v); });
    if (!op.fields()[*field].is_range() || !awkward) return row;
  }
  return ResolvePredicate(op, c, std::move(row), predicates);
}

// No slot represents the row, so its truth becomes one bit.
Result<Row> Registry::ResolvePredicate(const Operation& op, const Constraint& c, Row row,
                                       std::vector<Predicate>* predicates) {
  auto expression = Expression::Parse(c.field, [&](std::string_view n) -> std::optional<int> {
    if (auto v = op.ResolveVariable(n)) return v;
    for (size_t i = 0; i < op.contract().derived.size(); ++i) {
      if (op.contract().derived[i].name == n) return int(kMaxAxes + kMaxScalars + i);
    }
    return std::nullopt;
  });
  if (!expression.ok()) {
    return Status(StatusCode::kConfig,
                  {.field = std::string(c.field),
                   .wanted = "a field of " + std::string(op.name()) + " or an expression of its axes",
                   .got = "'" + std::string(c.field) + "'",
                   .fix = "see the fields in the operation's page"});
  }
  const auto same = [&](const Predicate& p) {
    return p.expression.text() == c.field && p.rel == c.rel && p.operand == c.operand && p.set == row.set &&
           p.fact == row.fact;
  };
  auto place = std::ranges::find_if(*predicates, same);
  if (place == predicates->end()) place = std::ranges::find_if(*predicates, &Predicate::is_free);
  if (place == predicates->end()) {
    if (predicates->size() == 64) {
      return Status(StatusCode::kConfig,
                    {.field = std::string(c.field), .wanted = "at most 64 predicates in an operation"});
    }
    place = predicates->insert(place, Predicate{});
  }
  row.predicate = int16_t(place - predicates->begin());
  *place = {std::move(*expression), c.rel, c.operand, row.set, row.fact};
  return row;
}

}  // namespace lz
