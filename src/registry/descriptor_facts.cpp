// The second half of a kernel object: arguments, memory layout, behavior, launch grid, free constraints, and what is
// not supported.
#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

#include "base/json_reader.h"
#include "platform/device.h"
#include "registry/descriptor_internal.h"
#include "registry/fact_table.h"
#include "registry/field_alias.h"

namespace lz {
namespace {

using nlohmann::json;

constexpr auto kRelations = std::to_array<std::pair<std::string_view, Rel>>({
    {"==", Rel::kEq},
    {"!=", Rel::kNe},
    {">=", Rel::kGe},
    {">", Rel::kGt},
    {"<=", Rel::kLe},
    {"<", Rel::kLt},
    {"multiple of", Rel::kMultipleOf},
    {"in", Rel::kInSet},
    {"has", Rel::kHasBits},
});

// The values of a choice, "silu|gelu"; empty if `field` is null or another field.
std::string_view ChoicesOf(const Field* field) {
  return field && field->type == FieldType::kChoice ? field->choices : std::string_view();
}

// The number that the field has for the name of one of its values; -1 if there is no such name.
int64_t NamedValue(const Field& field, std::string_view name) {
  const auto bits = [](int64_t value) { return value ? value : -1; };
  switch (field.type) {
    case FieldType::kDType: {
      const DType dtype = DTypeFromName(name);
      return dtype == DType::kUnknown ? -1 : int64_t(dtype);
    }
    case FieldType::kChoice: return ChoiceIndex(field.choices, name);
    case FieldType::kGeneration: return GenerationFromName(name);
    case FieldType::kIsa: return bits(IsaFromName(name));
    case FieldType::kInstructionSets: return bits(InstructionSetFromName(name));
    case FieldType::kPlatform: {
      const auto at = std::find(kPlatformNames.begin(), kPlatformNames.end(), name);
      return at == kPlatformNames.end() ? -1 : at - kPlatformNames.begin();
    }
    case FieldType::kBool:
    case FieldType::kNumerics:
    case FieldType::kAllowed: return -1;
    case FieldType::kNumber: break;
  }
  return field.name == "device.driver_version" || field.name == "device.cuda_version" ? VersionNumber(name) : -1;
}

// True if the field's values are bits or few, so that sets of them are masks.
bool IsMaskField(const Field& field) {
  return field.type == FieldType::kDType || field.type == FieldType::kGeneration || field.type == FieldType::kPlatform;
}

// null, false, 0, "" and empty lists and objects mean the same as an absent fact.
bool IsEmptyValue(const json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) || (value.is_number() && value == 0) ||
         (value.is_string() && value.get_ref<const std::string&>().empty()) || (value.is_structured() && value.empty());
}

}  // namespace

bool KernelReader::IsKnownKey(std::string_view key) {
  return std::ranges::any_of(kFacts, [&](const Fact& fact) { return fact.name == key; });
}

Status KernelReader::Arguments() {
  struct Flag {
    std::string_view key;
    std::array<std::string_view, 2> names;
    bool by_default;
  };
  // The scale is part of the operation's formula, so a kernel must declare it if it cannot take one.
  constexpr auto kFlags = std::to_array<Flag>({
      {"supports_causal", {"causal"}, false},
      {"supports_attn_mask", {"attn_mask"}, false},
      {"supports_dropout", {"dropout_p"}, false},
      {"supports_scale", {"scale", "sm_scale"}, true},
  });
  for (const Flag& flag : kFlags) {
    bool value = flag.by_default && attention();
    LZ_RETURN_IF_ERROR(Boolean(flag.key, &value));
    if (value && !attention()) return Bad(flag.key, "no such key in " + std::string(operation_.id), true);
    if (!value) continue;
    for (std::string_view name : flag.names) {
      if (!name.empty()) Accept(name);
    }
  }
  if (operation_.causal == 1) {
    Accept("causal");
    Row("causal", Rel::kEq, 1, ReasonCode::kArgumentUnsupported);
  } else if (operation_.causal == 0) {
    Row("causal", Rel::kEq, 0, ReasonCode::kArgumentUnsupported);
  }
  std::vector<std::string> names;
  LZ_RETURN_IF_ERROR(Names("accepts", &names));
  for (const std::string& name : names) Accept(name);
  // L15: a kernel that lets the NaN of a masked value through is excluded in strict mode.
  std::string_view masked;
  LZ_RETURN_IF_ERROR(Text("masked_v_nan", &masked));
  if (masked == "propagates") {
    Row("policy.strict_mode", Rel::kEq, 0, ReasonCode::kConstraintFailed);
  } else if (!masked.empty() && masked != "clean") {
    return Bad("masked_v_nan", "\"clean\" or \"propagates\"", std::string(masked));
  }
  return {};
}

Status KernelReader::Memory() {
  bool contiguous = false, dense = false, has_contiguous = false, has_dense = false;
  LZ_RETURN_IF_ERROR(Boolean("requires_contiguous", &contiguous, &has_contiguous));
  LZ_RETURN_IF_ERROR(Boolean("requires_last_dim_stride1", &dense, &has_dense));
  // If neither is declared, only contiguous tensors are supported.
  const bool strict = contiguous || (!has_contiguous && !has_dense);
  out_->spec.strides = strict ? Strides::kContiguous : dense || !has_dense ? Strides::kLastDimDense : Strides::kAny;
  const auto at = kernel_.find("requires_aligned");
  if (at == kernel_.end() || at->is_null()) return {};
  if (!at->is_object()) return Bad("requires_aligned", "an object of tensors and bytes, {\"query\": 16}", *at);
  for (const auto& [tensor, bytes] : at->items()) {
    const uint64_t n = bytes.is_number_unsigned() ? bytes.get<uint64_t>() : 0;
    if (n == 0 || n > 128 || (n & (n - 1)) != 0) {
      return Bad("requires_aligned." + tensor, "a power of two from 1 to 128", bytes);
    }
    Row(storage_->Keep(tensor + ".alignment"), Rel::kGe, std::countr_zero(n), ReasonCode::kAlignment);
  }
  return {};
}

Status KernelReader::Behaviour() {
  KernelSpec& spec = out_->spec;
  bool says = false;  // false is more than nothing: no policy and no proof overrides it
  LZ_RETURN_IF_ERROR(Boolean("is_cuda_graph_safe", &spec.cuda_graph_safe, &says));
  if (says && !spec.cuda_graph_safe) Row("capturing", Rel::kEq, 0, ReasonCode::kCudaGraphUnsafe);
  LZ_RETURN_IF_ERROR(Boolean("deterministic", &spec.deterministic));
  LZ_RETURN_IF_ERROR(Boolean("supports_grad", &spec.requires_grad));
  LZ_RETURN_IF_ERROR(Boolean("reference", &spec.reference));
  LZ_RETURN_IF_ERROR(Text("numerics", &spec.numerics));
  const auto number = [&](std::string_view key, double* out) -> Status {
    const auto at = kernel_.find(key);
    if (at == kernel_.end() || at->is_null()) return {};
    if (!at->is_number() || at->get<double>() < 0) return Bad(key, "a number from 0 on", *at);
    *out = at->get<double>();
    return {};
  };
  LZ_RETURN_IF_ERROR(number("transform_cost_hint", &out_->transform_cost_hint));
  std::vector<std::string> notes;
  LZ_RETURN_IF_ERROR(Names("notes", &notes));
  for (std::string& note : notes) out_->notes.push_back(storage_->Keep(std::move(note)));
  return {};
}

// The formula in the operation's axes: aliases replaced, "seq_tiles" as tiles of the query length.
std::string KernelReader::GridFormula(std::string_view text, int64_t tile_size) const {
  const auto is_name = [](char c) { return (c >= 'a' && c <= 'z') || c == '_' || (c >= '0' && c <= '9'); };
  std::string result;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_name(text[end])) ++end;
    if (end == at) {
      result += text[at++];
      continue;
    }
    const std::string_view word = text.substr(at, end - at);
    const auto fields = FieldsOfAlias(word);
    if (word == "seq_tiles") {
      result += "((s_q + " + std::to_string(tile_size - 1) + ") / " + std::to_string(tile_size) + ")";
    } else {
      result += fields.empty() ? word : fields.front();
    }
    at = end;
  }
  return result;
}

Status KernelReader::Grid() {
  const auto at = kernel_.find("grid_layout");
  if (at == kernel_.end() || at->is_null()) return {};
  if (!at->is_object()) return Bad("grid_layout", "an object", *at);
  constexpr auto kGridKeys =
      std::to_array<std::string_view>({"x", "y", "z", "blocks_per_batch_head", "tiles_sequence", "tile_size"});
  for (const auto& [key, value] : at->items()) {
    if (std::find(kGridKeys.begin(), kGridKeys.end(), key) == kGridKeys.end()) {
      return Bad("grid_layout." + key, "a known key", key);
    }
  }
  const auto whole = [&](const char* key, int64_t value) -> int64_t {
    const auto item = at->find(key);
    if (item == at->end()) return value;
    return item->is_number_unsigned() && item->get<uint64_t>() <= 1u << 20 ? item->get<int64_t>() : -1;
  };
  const int64_t tile = whole("tile_size", 128), blocks = whole("blocks_per_batch_head", 1);
  if (tile < 1 || blocks < 1) return Bad("grid_layout", "tile_size and blocks_per_batch_head from 1 to 1048576", *at);
  const auto tiled = at->find("tiles_sequence");
  if (tiled != at->end() && !tiled->is_boolean()) return Bad("grid_layout.tiles_sequence", "true or false", *tiled);
  struct Axis {
    const char* key;
    std::string_view limit;
  };
  constexpr auto kAxes =
      std::to_array<Axis>({{"x", "device.max_grid_x"}, {"y", "device.max_grid_y"}, {"z", "device.max_grid_z"}});
  for (const Axis& axis : kAxes) {
    const auto formula = at->find(axis.key);
    if (formula == at->end() || formula->is_null()) continue;
    const auto* text = formula->get_ptr<const std::string*>();
    if (!text || text->empty() || text->size() > 200) {
      return Bad(std::string("grid_layout.") + axis.key, "a formula of axes, \"batch * heads\"", *formula);
    }
    if (*text == "seq_tiles" && axis.limit == kAxes[0].limit) continue;  // no tensor reaches the limit along x
    LimitRow(storage_->Keep(GridFormula(*text, tile)), axis.limit, ReasonCode::kCudaGridDimExceeded);
  }
  if (!at->contains("x")) return Bad("grid_layout.x", "a formula of axes, \"batch * heads\"", nullptr);
  if (!HasFields({"b", "h_q", "s_q"})) return {};
  const bool tiles = tiled != at->end() && tiled->get<bool>();
  std::string total = "batch * heads * " + std::to_string(blocks);
  if (tiles) total += " * seq_tiles";
  LimitRow(storage_->Keep(GridFormula(total, tile)), tiles ? "device.max_grid_blocks" : "device.max_grid_x",
           ReasonCode::kCudaBlockLimitExceeded);
  return {};
}

// {"is_tp_invariant": true, "reduction_order": "tree", "uses_tbik": true, "max_tp_size": 8}
Status KernelReader::Tp() {
  const auto at = kernel_.find("tp_invariance");
  if (at == kernel_.end() || IsEmptyValue(*at)) return {};
  if (!at->is_object()) return Bad("tp_invariance", "an object", *at);
  TpInvariance& tp = out_->spec.tp;
  bool uses_tree = false;
  for (const auto& [key, value] : at->items()) {
    const std::string place = "tp_invariance." + key;
    if (key == "is_tp_invariant" || key == "uses_tbik") {
      if (!value.is_boolean()) return Bad(place, "true or false", value);
      (key == "uses_tbik" ? uses_tree : tp.is_tp_invariant) = value.get<bool>();
    } else if (key == "reduction_order") {
      const auto* name = value.get_ptr<const std::string*>();
      const int64_t order = !name ? -1 : *name == "arbitrary" ? 0 : ChoiceIndex(kReductionOrders, *name);
      if (order < 0 || (order == 0 && *name != "arbitrary")) {
        return Bad(place, "arbitrary, canonical, tree or ring", value);
      }
      tp.reduction_order = ReductionOrder(order);
    } else if (key == "max_tp_size") {
      const bool fits = value.is_number_unsigned() && value.get<uint64_t>() - 1 < kMaxTpSize;
      if (!fits && !value.is_null()) return Bad(place, "a whole number from 1 to " + std::to_string(kMaxTpSize), value);
      tp.max_tp_size = fits ? value.get<int32_t>() : 0;
    } else {
      return Bad(place, "is_tp_invariant, reduction_order, uses_tbik or max_tp_size", key);
    }
  }
  // Tree-based invariant kernels add in the order of a tree that the ranks continue.
  if (uses_tree && (!tp.is_tp_invariant || tp.reduction_order != ReductionOrder::kTree)) {
    return Bad("tp_invariance", "is_tp_invariant: true and reduction_order: tree next to uses_tbik: true", *at);
  }
  return {};
}

Status KernelReader::Operand(const json& value, const std::string& place, const Field* field, int64_t* out) const {
  const std::string_view choices = ChoicesOf(field);
  const auto* text = value.get_ptr<const std::string*>();
  if (text) {
    *out = field ? NamedValue(*field, *text) : -1;
    if (*out >= 0) return {};
  }
  // The numbers of choices are internal to the contract.
  if (!choices.empty()) return DescriptorError(place, "one of " + std::string(choices), JsonText(value));
  if (value.is_boolean()) {
    *out = value.get<bool>();
    return {};
  }
  if (value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX))) {
    *out = value.get<int64_t>();
    return {};
  }
  return DescriptorError(place, "a whole number, a boolean or a name that the field knows", JsonText(value));
}

// Reads `operand` or `set` of a constraint row, depending on the relation.
Status KernelReader::ConstraintValues(const json& row, const std::string& place, Constraint* c) {
  const std::string relation(RelText(c->rel));
  if (const auto fact = row.find("fact"); fact != row.end()) {
    const auto* name = fact->get_ptr<const std::string*>();
    if (!name || name->empty() || row.contains("operand") || row.contains("set")) {
      return DescriptorError(place, "`fact` alone: the name of a fact of the device or the policy", JsonText(row));
    }
    const auto names = FieldsNamed(*name);
    c->fact = names.empty() ? storage_->Keep(*name) : names.front();
    return {};
  }
  const bool is_set = c->rel == Rel::kInSet;
  if (row.contains(is_set ? "operand" : "set") || !row.contains(is_set ? "set" : "operand")) {
    return DescriptorError(place, is_set ? "`set` next to \"in\"" : "`operand` next to \"" + relation + "\"",
                           "the other");
  }
  const auto index = operation_.op->FindField(c->field);
  const Field* field = index ? &operation_.op->fields()[*index] : nullptr;
  if (!is_set) {
    LZ_RETURN_IF_ERROR(Operand(row["operand"], place + ".operand", field, &c->operand));
    if (c->rel == Rel::kMultipleOf && c->operand < 1)
      return DescriptorError(place + ".operand", "at least 1", JsonText(row["operand"]));
    return {};
  }
  const json& set = row["set"];
  if (!set.is_array() || set.empty()) return DescriptorError(place + ".set", "a list of values", JsonText(set));
  std::vector<int64_t> values;
  for (const json& value : set) {
    LZ_RETURN_IF_ERROR(Operand(value, place + ".set", field, &values.emplace_back()));
  }
  if (!field || !IsMaskField(*field)) {
    c->set = storage_->Keep(std::move(values));
    return {};
  }
  // Bit 0 of a dtype mask means "absent": a row on an optional tensor's dtype holds for a call without that tensor.
  c->rel = Rel::kInMask;
  if (c->field.ends_with(".dtype")) c->operand = 1;
  for (int64_t value : values) {
    if (value < 0 || value > 62) return DescriptorError(place + ".set", "values of the field", std::to_string(value));
    c->operand |= int64_t{1} << value;
  }
  return {};
}

// The fields of the operation that `name` refers to: an alias may name several, and none of this operation.
std::vector<std::string_view> KernelReader::FieldsNamed(const std::string& name) const {
  const auto alias = FieldsOfAlias(name);
  if (alias.empty() || operation_.op->FindField(name)) return {storage_->Keep(name)};
  std::vector<std::string_view> fields;
  std::ranges::copy_if(alias, std::back_inserter(fields),
                       [&](std::string_view field) { return operation_.op->FindField(field).has_value(); });
  return fields;
}

Status KernelReader::ReadConstraint(const json& row, const std::string& place, std::vector<Constraint>* to) {
  constexpr auto kRowKeys = std::to_array<std::string_view>({"field", "relation", "operand", "set", "fact", "code"});
  if (!row.is_object()) return DescriptorError(place, "an object", JsonText(row));
  for (const auto& [key, value] : row.items()) {
    if (std::find(kRowKeys.begin(), kRowKeys.end(), key) == kRowKeys.end()) {
      return DescriptorError(place + "." + key, "a known key", "'" + key + "'");
    }
  }
  const auto text = [&](const char* key) -> const std::string* {
    const auto at = row.find(key);
    return at == row.end() ? nullptr : at->get_ptr<const std::string*>();
  };
  const std::string* field = text("field");
  const std::string* relation = text("relation");
  const std::string wanted = "a field of " + std::string(operation_.id);
  if (!field || field->empty()) return DescriptorError(place + ".field", wanted, "none");
  const auto known = std::find_if(kRelations.begin(), kRelations.end(),
                                  [&](const auto& r) { return relation && r.first == *relation; });
  if (known == kRelations.end()) {
    return DescriptorError(place + ".relation", "==, !=, >=, >, <=, <, multiple of, in or has",
                           relation ? "'" + *relation + "'" : "none");
  }
  ReasonCode code = ReasonCode::kAuto;
  if (row.contains("code")) {
    const std::string* name = text("code");
    code = name ? ReasonCodeFromName(*name) : ReasonCode::kAuto;
    if (code == ReasonCode::kAuto) return DescriptorError(place + ".code", "a reason code", JsonText(row["code"]));
  }
  const auto fields = FieldsNamed(*field);
  if (fields.empty()) return DescriptorError(place + ".field", wanted, "'" + *field + "'");
  for (std::string_view name : fields) {
    Constraint c = {.field = name, .rel = known->second, .code = code};
    LZ_RETURN_IF_ERROR(ConstraintValues(row, place, &c));
    to->push_back(c);
  }
  return {};
}

Status KernelReader::Constraints() {
  const auto at = kernel_.find("constraints");
  if (at == kernel_.end() || at->is_null()) return {};
  if (!at->is_array()) return Bad("constraints", "a list of rows", *at);
  for (size_t i = 0; i < at->size(); ++i) {
    LZ_RETURN_IF_ERROR(ReadConstraint((*at)[i], place_ + ".constraints[" + std::to_string(i) + "]", &rows_));
  }
  return {};
}

// {"when": [rows as in constraints, without a code], "priority": 5}
Status KernelReader::ReadPreference(const json& value, const std::string& place, Preference* out) {
  if (!value.is_object()) return DescriptorError(place, "an object", JsonText(value));
  for (const auto& [key, ignored] : value.items()) {
    if (key != "when" && key != "priority") return DescriptorError(place + "." + key, "a known key", "'" + key + "'");
  }
  const json when = value.value("when", json()), priority = value.value("priority", json());
  if (!when.is_array() || when.empty()) return DescriptorError(place + ".when", "a list of rows", JsonText(when));
  if (!priority.is_number_integer() || priority < 0 || priority > 100) {
    return DescriptorError(place + ".priority", "a whole number from 0 to 100", JsonText(priority));
  }
  std::vector<Constraint>& conditions = storage_->rows.emplace_back();
  for (size_t i = 0; i < when.size(); ++i) {
    const std::string at = place + ".when[" + std::to_string(i) + "]";
    LZ_RETURN_IF_ERROR(ReadConstraint(when[i], at, &conditions));
    if (when[i].contains("code")) return DescriptorError(at + ".code", "no code: it refuses no call", "one");
  }
  *out = {conditions, priority.get<int32_t>()};
  return {};
}

Status KernelReader::Preferences() {
  const auto at = kernel_.find("preferences");
  if (at == kernel_.end() || at->is_null()) return {};
  if (!at->is_array()) return Bad("preferences", "a list", *at);
  std::vector<Preference>& all = storage_->preferences.emplace_back(at->size());
  for (size_t i = 0; i < at->size(); ++i) {
    LZ_RETURN_IF_ERROR(ReadPreference((*at)[i], place_ + ".preferences[" + std::to_string(i) + "]", &all[i]));
  }
  out_->spec.preferences = all;
  return {};
}

// {"when": "first_call", "key": ["hidden", {"field": "rows", "relation": "==", "operand": 1}]}
Status KernelReader::JitKeys() {
  const auto at = kernel_.find("jit");
  if (at == kernel_.end() || at->is_null()) return {};
  if (!at->is_object()) return Bad("jit", "an object", *at);
  JitKey& jit = out_->jit;
  for (const auto& [name, value] : at->items()) {
    if (name == "when") {
      const auto known = std::ranges::find(kJitNames, value.is_string() ? value.get<std::string>() : "");
      if (known == kJitNames.end()) return Bad("jit.when", "first_call, recorded, done or none", value);
      jit.when = Jit(known - kJitNames.begin());
    } else if (name != "key" || !value.is_array()) {
      return Bad("jit." + name, "`when`, and `key`: a list", value);
    }
  }
  const json key = at->value("key", json::array());
  if (jit.when != Jit::kFirstCall && !key.empty()) return Bad("jit.key", "none unless `when` is first_call", key);
  for (size_t i = 0; i < key.size(); ++i) {
    const std::string place = place_ + ".jit.key[" + std::to_string(i) + "]";
    if (!key[i].is_string()) {
      std::vector<Constraint>& rows = storage_->rows.emplace_back();
      LZ_RETURN_IF_ERROR(ReadConstraint(key[i], place, &rows));
      jit.conditions.insert(jit.conditions.end(), rows.begin(), rows.end());
      continue;
    }
    const auto fields = FieldsNamed(key[i].get<std::string>());
    if (fields.empty()) return DescriptorError(place, "a field of " + std::string(operation_.id), JsonText(key[i]));
    jit.fields.insert(jit.fields.end(), fields.begin(), fields.end());
  }
  return {};
}

Status KernelReader::Requirements() {
  const auto at = kernel_.find("requires");
  if (at == kernel_.end() || at->is_null()) return {};
  if (!at->is_array()) return Bad("requires", "a list", *at);
  for (size_t i = 0; i < at->size(); ++i) {
    Requirement requirement;
    LZ_RETURN_IF_ERROR(ReadRequirement((*at)[i], place_ + ".requires[" + std::to_string(i) + "]", &requirement));
    out_->requirements.push_back(&storage_->requirements.emplace_back(std::move(requirement)));
  }
  return {};
}

Status KernelReader::Unsupported() {
  for (const Fact& fact : kFacts) {
    const auto at = kernel_.find(fact.name);
    if (fact.use != FactUse::kUnsupported || at == kernel_.end() || IsEmptyValue(*at)) continue;
    return Bad(fact.name, "no value: it is not supported in this version (" + std::string(fact.effect) + ")", *at);
  }
  return {};
}

}  // namespace lz
