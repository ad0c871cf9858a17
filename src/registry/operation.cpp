// Compiles contracts, once per contract at start-up; a mistake in a contract is an error with its name.
#include "registry/operation.h"

#include <algorithm>
#include <bit>
#include <cctype>

#include "platform/device.h"

namespace lz {
namespace {

Status Bad(std::string_view operation, std::string_view what, std::string wanted) {
  return Status(StatusCode::kInternal,
                {.field = std::string(operation) + ": " + std::string(what), .wanted = std::move(wanted)});
}

std::string_view Trim(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}
std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(Trim(text.substr(0, at)));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}
// The dimensions of a shape: a comma inside [ ] belongs to a list of numbers.
std::vector<std::string_view> Dimensions(std::string_view shape) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  int depth = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    depth += (shape[i] == '[') - (shape[i] == ']');
    if (shape[i] != ',' || depth != 0) continue;
    parts.push_back(Trim(shape.substr(start, i - start)));
    start = i + 1;
  }
  parts.push_back(Trim(shape.substr(start)));
  return parts;
}
bool IsName(std::string_view s) {
  return !s.empty() && !std::isdigit(static_cast<unsigned char>(s[0])) && std::all_of(s.begin(), s.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  });
}

}  // namespace

std::string PolicyFieldName(PolicyField field) { return "policy." + std::string(kPolicyFields[size_t(field)].name); }

Result<std::unique_ptr<Operation>> Operation::Compile(const Contract& contract) {
  std::unique_ptr<Operation> op(new Operation(contract));
  LZ_RETURN_IF_ERROR(op->CompileParams());
  LZ_RETURN_IF_ERROR(op->CompileLayouts());
  LZ_RETURN_IF_ERROR(op->AssignSlots());
  return op;
}

Status Operation::CompileParams() {
  for (size_t i = 0; i < contract_->params.size(); ++i) {
    (contract_->params[i].kind == ParamKind::kTensor ? inputs_ : scalars_).push_back(uint8_t(i));
  }
  if (inputs_.size() + num_outputs() > kMaxTensors || scalars_.size() > kMaxScalars || num_outputs() > kMaxOutputs) {
    return Bad(name(), "parameters", "at most 16 tensors with outputs, 4 outputs, 16 scalars");
  }
  // Names are bound at their first appearance in any shape; expressions are compiled after all names are known.
  for (size_t i = 0; i < inputs_.size(); ++i) {
    for (std::string_view token : Dimensions(input(i).shape)) {
      if ((IsName(token) && token != "_") || token == "...") {
        if (AxisIndex(token) < 0) axes_.emplace_back(token);
      }
    }
  }
  if (axes_.size() > kMaxAxes) return Bad(name(), "axes", "at most 16");
  leading_axis_ = AxisIndex("...");
  for (size_t i = 0; i < inputs_.size(); ++i) {
    input_shapes_.emplace_back();
    LZ_RETURN_IF_ERROR(CompileShape(input(i).shape, false, &input_shapes_.back()));
    same_dtype_.push_back(-1);
    if (input(i).mutated) mutated_inputs_ |= 1u << i;
    if (!input(i).same_dtype_as.empty()) {
      const std::optional<uint16_t> other = InputIndex(input(i).same_dtype_as);
      if (!other) return Bad(name(), input(i).same_dtype_as, "the name of a tensor parameter");
      same_dtype_.back() = *other;
      if (input(i).promotes) promotes_ |= 1u << i | 1u << *other;
    }
  }
  for (const Output& output : contract_->outputs) {
    output_shapes_.emplace_back();
    LZ_RETURN_IF_ERROR(CompileShape(output.shape, true, &output_shapes_.back()));
    LZ_RETURN_IF_ERROR(CompileCondition(output));
  }
  LZ_RETURN_IF_ERROR(CompileFold());
  for (const DerivedFact& fact : contract_->derived) {
    auto expression = Expression::Parse(fact.expression, [this](std::string_view n) { return ResolveVariable(n); });
    if (!expression.ok()) return Bad(name(), fact.name, expression.status().Text());
    derived_.push_back(std::move(*expression));
  }
  return {};
}

Status Operation::CompileCondition(const Output& output) {
  if (output.only_if.empty()) return {};
  for (size_t i = 0; i < contract_->params.size(); ++i) {
    const Param& p = contract_->params[i];
    const bool decides = p.kind == ParamKind::kBool || (p.kind == ParamKind::kTensor && p.optional);
    if (p.name != output.Condition() || !decides) continue;
    if (output_condition_ >= 0 && output_condition_ != int(i)) break;
    output_condition_ = int(i);
    return {};
  }
  return Bad(name(), output.name, "one boolean or optional tensor for the conditions of all outputs");
}

Status Operation::CompileFold() {
  num_host_params_ = contract_->params.size();
  for (size_t i = 0; i < scalars_.size(); ++i) {
    const Param& p = scalar(i);
    if (p.folds.empty()) continue;
    const bool last = scalars_[i] + 1 == int(contract_->params.size());
    fold_scalar_ = int(i);
    fold_axis_ = AxisIndex(p.folds);
    if (fold_axis_ < 0 || p.kind != ParamKind::kInt || (p.optional && !last)) {
      return Bad(name(), p.name, "the size of one axis; the last parameter if it is optional");
    }
    num_host_params_ -= p.optional;
  }
  return {};
}

Status Operation::CompileShape(std::string_view text, bool output, ShapeProgram* program) {
  if (text == "*") {
    program->any_rank = true;
    return {};
  }
  if (Trim(text).empty()) return {};
  if (output && text.ends_with('}')) return CompileAlternatives(text, program);
  if (output && text.starts_with("blocks(")) return CompileBlocks(text, program);
  const std::vector<std::string_view> tokens = Dimensions(text);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == "...") {
      if (i != 0) return Bad(name(), text, "'...' in front");
      program->leading = true;
      continue;
    }
    Dim dim;
    if (tokens[i] == "_" && !output) {
      dim.kind = Dim::Kind::kAny;
    } else if (IsName(tokens[i]) && AxisIndex(tokens[i]) >= 0) {
      dim.kind = Dim::Kind::kAxis;
      dim.axis = int16_t(AxisIndex(tokens[i]));
    } else {
      auto expression = Expression::Parse(tokens[i], [this](std::string_view n) { return ResolveVariable(n); });
      if (!expression.ok()) return Bad(name(), text, expression.status().Text());
      dim.kind = Dim::Kind::kExpression;
      dim.expression = int16_t(expressions_.size());
      expressions_.push_back(std::move(*expression));
    }
    program->dims.push_back(dim);
  }
  if (program->dims.size() > size_t(kMaxRank)) return Bad(name(), text, "at most 8 axes");
  return {};
}

Status Operation::CompileAlternatives(std::string_view text, ShapeProgram* program) {
  const size_t open = text.find('{');
  const std::optional<uint16_t> choice = ScalarIndex(Trim(text.substr(0, open)));
  if (!choice || scalar(*choice).kind != ParamKind::kChoice) return Bad(name(), text, "choice{shape | shape}");
  program->choice = int16_t(*choice);
  for (std::string_view one : Split(text.substr(open + 1, text.size() - open - 2), '|')) {
    program->alternatives.emplace_back();
    LZ_RETURN_IF_ERROR(CompileShape(one, true, &program->alternatives.back()));
  }
  if (program->alternatives.size() == Split(scalar(*choice).choices, '|').size()) return {};
  return Bad(name(), text, "one shape for each choice");
}

Status Operation::CompileBlocks(std::string_view text, ShapeProgram* program) {
  const size_t open = text.find('(');
  const std::vector<std::string_view> parts = Split(text.substr(open + 1, text.size() - open - 2), ';');
  const std::optional<uint16_t> input = InputIndex(parts[0]);
  if (parts.size() != 4 || !input || !text.ends_with(')'))
    return Bad(name(), text, "blocks(input; axis; rows; columns)");
  program->blocks_of = int16_t(*input);
  if (!parts[1].empty()) {
    const std::optional<uint16_t> axis = ScalarIndex(parts[1]);
    if (!axis || scalar(*axis).kind != ParamKind::kInt) return Bad(name(), parts[1], "the name of an integer");
    program->blocks_axis = int16_t(*axis);
  }
  for (std::string_view part : {parts[2], parts[3]}) {
    auto expression = Expression::Parse(part, [this](std::string_view n) { return ResolveVariable(n); });
    if (!expression.ok()) return Bad(name(), text, expression.status().Text());
    program->dims.push_back({.kind = Dim::Kind::kExpression, .expression = int16_t(expressions_.size())});
    expressions_.push_back(std::move(*expression));
  }
  return {};
}

// "BSHD: b s h d | BHSD: b h s d": the first is the order of the contract's shapes.
Status Operation::CompileLayouts() {
  if (contract_->layouts.empty()) return {};
  const Causal causal{int(ScalarIndex("causal").value_or(-1)), AxisIndex("s_q"), AxisIndex("s_kv")};
  if (ScalarIndex("causal") && causal.s_q >= 0 && causal.s_kv >= 0) causal_ = causal;
  std::vector<std::string_view> logical;
  for (std::string_view entry : Split(contract_->layouts, '|')) {
    const size_t colon = entry.find(':');
    if (colon == entry.npos) return Bad(name(), entry, "NAME: axes");
    const std::vector<std::string_view> letters = Split(Trim(entry.substr(colon + 1)), ' ');
    if (logical.empty()) {
      logical = letters;
      const auto heads = std::find(letters.begin(), letters.end(), "h");
      if (heads != letters.end()) head_axis_ = int(heads - letters.begin());
    }
    std::vector<uint8_t> permutation;
    for (std::string_view axis : logical) {
      const auto at = std::find(letters.begin(), letters.end(), axis);
      if (at == letters.end() || letters.size() != logical.size()) return Bad(name(), entry, "the same axes");
      permutation.push_back(uint8_t(at - letters.begin()));
    }
    layout_names_.emplace_back(Trim(entry.substr(0, colon)));
    layouts_.push_back(std::move(permutation));
  }
  if (layouts_.size() > 4) return Bad(name(), "layouts", "at most 4");
  return {};
}

Status Operation::AssignSlots() {
  AddField({.name = "capturing", .type = FieldType::kBool, .slot = kSlotFlags, .mask = kFlagCapturing});
  AddField(
      {.name = "requires_grad", .type = FieldType::kBool, .slot = kSlotFlags, .shift = 1, .mask = kFlagRequiresGrad});
  AddField({.name = "layout", .slot = kSlotFlags, .shift = kFlagLayoutShift, .mask = kFlagLayoutMask});
  for (size_t i = 0; i < size_t(DeviceField::kCount); ++i) {
    const auto f = DeviceField(i);
    const FieldType type = f == DeviceField::kPlatform          ? FieldType::kPlatform
                           : f == DeviceField::kGeneration      ? FieldType::kGeneration
                           : f == DeviceField::kIsa             ? FieldType::kIsa
                           : f == DeviceField::kInstructionSets ? FieldType::kInstructionSets
                                                                : FieldType::kNumber;
    AddField({.name = "device." + std::string(kDeviceFields[i].name),
              .home = FieldHome::kDevice,
              .type = type,
              .slot = uint8_t(i)});
  }
  for (size_t i = 0; i < kPolicyFields.size(); ++i) {
    AddField({.name = PolicyFieldName(PolicyField(i)),
              .home = FieldHome::kPolicy,
              .type = kPolicyFields[i].type,
              .slot = uint8_t(i),
              .choices = kPolicyFields[i].choices});
  }

  size_t slot = kFirstTensorSlot;
  for (size_t i = 0; i < inputs_.size(); ++i, ++slot) {
    const std::string n(input(i).name);
    const auto bit = [&](std::string_view suffix, int32_t mask) {
      AddField({.name = n + "." + std::string(suffix),
                .type = FieldType::kBool,
                .slot = uint8_t(slot),
                .shift = uint8_t(std::countr_zero(uint32_t(mask))),
                .mask = mask});
    };
    const auto dtype = [&](std::string field) {
      AddField({.name = std::move(field), .type = FieldType::kDType, .slot = uint8_t(slot), .mask = kTensorDTypeMask});
    };
    if (i == 0) dtype("dtype");
    dtype(n + ".dtype");
    bit("given", kTensorGiven);
    bit("last_dim_stride1", kTensorLastDimStride1);
    bit("contiguous", kTensorContiguous);
    bit("broadcast", kTensorBroadcast);
    bit("same_dtype", kTensorSameDType);
    bit("cast", kTensorCast);
    bit("one_element", kTensorOneElement);
    bit("columns_dense", kTensorColumnsDense);
    AddField({.name = n + ".alignment",
              .slot = uint8_t(slot),
              .shift = kTensorAlignmentShift,
              .mask = kTensorAlignmentMask});
    AddField({.name = n + ".ndim", .slot = uint8_t(slot), .shift = kTensorNdimShift, .mask = kTensorNdimMask});
  }
  first_axis_slot_ = uint8_t(slot);
  for (const std::string& axis : axes_) AddField({.name = axis, .slot = uint8_t(slot++)});
  first_derived_slot_ = uint8_t(slot);
  for (const DerivedFact& fact : contract_->derived) {
    Field field{.name = std::string(fact.name), .slot = uint8_t(slot++)};
    const std::optional<uint16_t> choice = ScalarIndex(fact.expression);
    if (choice && scalar(*choice).kind == ParamKind::kChoice) {  // another name for that choice: its values have
                                                                 // names too
      field.type = FieldType::kChoice;
      field.param = int16_t(scalars_[*choice]);
      field.choices = scalar(*choice).choices;
    }
    AddField(std::move(field));
  }

  // Booleans and choices share one word: value bits and a "given" bit each; other scalars a "given" bit.
  unsigned bit = 0;
  for (size_t i = 0; i < scalars_.size(); ++i) {
    const Param& p = scalar(i);
    scalar_given_bit_.push_back(uint8_t(bit));
    AddField({.name = std::string(p.name) + ".given",
              .type = FieldType::kBool,
              .slot = kSlotScalars,
              .shift = uint8_t(bit),
              .mask = int32_t(1u << bit)});
    ++bit;
    scalar_value_shift_.push_back(uint8_t(bit));
    if (p.kind == ParamKind::kBool || p.kind == ParamKind::kChoice) {
      const size_t values = p.kind == ParamKind::kBool ? 2 : Split(p.choices, '|').size();
      const int width = std::bit_width(values - 1);
      AddField({.name = std::string(p.name),
                .type = p.kind == ParamKind::kBool ? FieldType::kBool : FieldType::kChoice,
                .slot = kSlotScalars,
                .shift = uint8_t(bit),
                .mask = int32_t(((1u << width) - 1) << bit),
                .param = int16_t(scalars_[i]),
                .choices = p.choices});
      bit += unsigned(width);
    } else if (p.kind == ParamKind::kInt && p.folds.empty()) {  // an axis has that number already
      int_scalar_slots_.emplace_back(uint8_t(i), uint8_t(slot));
      AddField({.name = std::string(p.name), .slot = uint8_t(slot++)});
    }
  }
  num_slots_ = slot;
  if (slot > kFactSlots || bit > 31) return Bad(name(), "facts", "at most 32 slots and 31 scalar bits");
  return {};
}

void Operation::AddField(Field field) {
  field_index_.emplace(field.name, uint16_t(fields_.size()));  // an axis wins over a scalar of the same name
  fields_.push_back(std::move(field));
}

std::optional<uint16_t> Operation::FindField(std::string_view name) const {
  const auto at = field_index_.find(name);
  if (at == field_index_.end()) return std::nullopt;
  return at->second;
}
std::optional<uint16_t> Operation::ScalarIndex(std::string_view name) const {
  for (size_t i = 0; i < scalars_.size(); ++i) {
    if (scalar(i).name == name) return uint16_t(i);
  }
  return std::nullopt;
}
std::optional<uint16_t> Operation::InputIndex(std::string_view name) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (input(i).name == name) return uint16_t(i);
  }
  return std::nullopt;
}
int Operation::AxisIndex(std::string_view name) const {
  const auto at = std::find(axes_.begin(), axes_.end(), name);
  return at == axes_.end() ? -1 : int(at - axes_.begin());
}
std::optional<int> Operation::ResolveVariable(std::string_view name) const {
  if (const int axis = AxisIndex(name); axis >= 0) return axis;
  if (const auto scalar_index = ScalarIndex(name); scalar_index && scalar(*scalar_index).kind != ParamKind::kFloat) {
    return int(kMaxAxes + *scalar_index);
  }
  return std::nullopt;
}

}  // namespace lz
