// One kernel object of a descriptor: each declared fact becomes a constraint row, a field of the spec, or an error.
#include <algorithm>
#include <array>
#include <iterator>

#include "base/json_reader.h"
#include "platform/device.h"
#include "registry/descriptor_internal.h"
#include "registry/field_alias.h"

namespace lz {
namespace {

using nlohmann::json;

bool AllTexts(const json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_string(); });
}

bool IsGroupOfOne(const Condition& c) { return c.field == "group" && c.rel == Rel::kEq && c.operand == 1; }

// The conditions of a variant except the one on the group.
std::vector<Condition> OtherConditions(const Variant& variant) {
  std::vector<Condition> others;
  std::ranges::remove_copy_if(variant.when, std::back_inserter(others), IsGroupOfOne);
  return others;
}

}  // namespace

std::string_view GroupedVariantOf(const Contract& contract, std::string_view id) {
  const auto one = std::ranges::find(contract.variants, id, &Variant::id);
  if (one == contract.variants.end() || std::ranges::none_of(one->when, IsGroupOfOne)) return {};
  const auto same = [](const Condition& a, const Condition& b) {
    return a.field == b.field && a.rel == b.rel && a.operand == b.operand;
  };
  // Variants are ordered: a later one with the same conditions gets the remaining calls, which are the grouped ones.
  const auto grouped = std::find_if(one + 1, contract.variants.end(), [&](const Variant& v) {
    return std::ranges::none_of(v.when, IsGroupOfOne) && std::ranges::equal(OtherConditions(*one), v.when, same);
  });
  return grouped == contract.variants.end() ? std::string_view() : grouped->id;
}

bool KernelReader::HasFields(std::initializer_list<std::string_view> names) const {
  return std::ranges::all_of(names, [&](std::string_view name) { return operation_.op->FindField(name).has_value(); });
}

Status KernelReader::Bad(std::string_view key, std::string wanted, const json& got) const {
  return DescriptorError(place_ + "." + std::string(key), std::move(wanted), JsonText(got));
}

Status KernelReader::Integer(std::string_view key, int64_t low, int64_t high, int64_t* out, bool* given) const {
  *given = false;
  const auto at = kernel_.find(key);
  if (at == kernel_.end() || at->is_null()) return {};
  const bool fits = at->is_number_integer() && !(at->is_number_unsigned() && at->get<uint64_t>() > uint64_t(INT64_MAX));
  const int64_t value = fits ? at->get<int64_t>() : 0;
  if (!fits || value < low || value > high) {
    return Bad(key, "a whole number from " + std::to_string(low) + " to " + std::to_string(high), *at);
  }
  *out = value;
  *given = true;
  return {};
}

Status KernelReader::Boolean(std::string_view key, bool* out, bool* given) const {
  const auto at = kernel_.find(key);
  const bool has = at != kernel_.end() && !at->is_null();
  if (given) *given = has;
  if (!has) return {};
  if (!at->is_boolean()) return Bad(key, "true or false", *at);
  *out = at->get<bool>();
  return {};
}

Status KernelReader::Text(std::string_view key, std::string_view* out) const {
  const auto at = kernel_.find(key);
  if (at == kernel_.end() || at->is_null()) return {};
  const auto* text = at->get_ptr<const std::string*>();
  if (!text || text->empty()) return Bad(key, "a text", *at);
  *out = storage_->Keep(*text);
  return {};
}

Status KernelReader::Names(std::string_view key, std::vector<std::string>* out) const {
  const auto at = kernel_.find(key);
  if (at == kernel_.end() || at->is_null()) return {};
  if (!AllTexts(*at)) return Bad(key, "a list of texts", *at);
  for (const json& item : *at) {
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty()) return Bad(key, "a list of names", *at);
    out->push_back(text);
  }
  return {};
}

void KernelReader::Row(std::string_view field, Rel rel, int64_t operand, ReasonCode code) {
  rows_.push_back({.field = field, .rel = rel, .operand = operand, .code = code});
}

void KernelReader::LimitRow(std::string_view field, std::string_view fact, ReasonCode code) {
  rows_.push_back({.field = field, .rel = Rel::kLe, .code = code, .fact = fact});
}

Status KernelReader::Read(DescribedKernel* out) {
  out_ = out;
  using Step = Status (KernelReader::*)();
  constexpr auto kSteps = std::to_array<Step>({
      &KernelReader::Unsupported, &KernelReader::Identity,    &KernelReader::Dtypes,        &KernelReader::DtypeFlags,
      &KernelReader::Layouts,     &KernelReader::Sm,          &KernelReader::Generation,    &KernelReader::Versions,
      &KernelReader::HeadDims,    &KernelReader::Lengths,     &KernelReader::Gqa,           &KernelReader::Arguments,
      &KernelReader::MaskTypes,   &KernelReader::QuantScales, &KernelReader::PackedWeights, &KernelReader::KvCache,
      &KernelReader::Memory,      &KernelReader::Behaviour,   &KernelReader::Grid,          &KernelReader::Tp,
      &KernelReader::Constraints, &KernelReader::Preferences, &KernelReader::JitKeys,       &KernelReader::Requirements,
      &KernelReader::Workspace,
  });
  for (Step step : kSteps) LZ_RETURN_IF_ERROR((this->*step)());
  out->spec.constraints = storage_->rows.emplace_back(std::move(rows_));
  out->spec.accepts = storage_->names.emplace_back(std::move(accepts_));
  return {};
}

Status KernelReader::Identity() {
  KernelSpec& spec = out_->spec;
  spec.call = CallKind::kHost;
  spec.operation = operation_.id;
  LZ_RETURN_IF_ERROR(Text("kernel_id", &spec.id));
  if (spec.id.find('.') == std::string_view::npos) {
    return Bad("kernel_id", "an id with its provider first, \"flash_attn.v2.causal\"",
               Has("kernel_id") ? *kernel_.find("kernel_id") : json());
  }
  LZ_RETURN_IF_ERROR(Text("source", &spec.source));
  LZ_RETURN_IF_ERROR(Text("adapter", &out_->adapter));
  std::string_view platform;
  LZ_RETURN_IF_ERROR(Text("platform", &platform));
  if (!platform.empty()) {
    const auto at = std::find(kPlatformNames.begin(), kPlatformNames.end(), platform);
    if (at == kPlatformNames.end()) return Bad("platform", "any, cpu, cuda, rocm, xpu or hpu", std::string(platform));
    platform_ = Platform(at - kPlatformNames.begin());
  }
  spec.platform = platform_;
  int64_t number = 0;
  bool given = false;
  LZ_RETURN_IF_ERROR(Integer("version", 1, INT32_MAX, &number, &given));
  if (given) spec.version = uint32_t(number);
  LZ_RETURN_IF_ERROR(Integer("priority", 0, 100, &number, &given));
  if (given) spec.priority = int32_t(number);
  return {};
}

// 80, or [8, 0].
Status KernelReader::SmNumber(std::string_view key, int64_t* out, bool* given) const {
  const auto at = kernel_.find(key);
  if (at == kernel_.end() || !at->is_array()) return Integer(key, 1, 9999, out, given);
  const bool pair = at->size() == 2 && (*at)[0].is_number_unsigned() && (*at)[1].is_number_unsigned() &&
                    (*at)[0].get<uint64_t>() < 1000 && (*at)[1].get<uint64_t>() < 10;
  if (!pair) return Bad(key, "80 or [8, 0]", *at);
  *out = (*at)[0].get<int64_t>() * 10 + (*at)[1].get<int64_t>();
  *given = true;
  return {};
}

Status KernelReader::Sm() {
  int64_t low = 0, high = 0;
  bool has_low = false, has_high = false;
  LZ_RETURN_IF_ERROR(SmNumber("min_sm", &low, &has_low));
  LZ_RETURN_IF_ERROR(SmNumber("max_sm", &high, &has_high));
  if (has_low && has_high && high < low) return Bad("max_sm", "at least min_sm", *kernel_.find("max_sm"));
  if (has_low) Row("device.sm", Rel::kGe, low, ReasonCode::kSmTooOld);
  if (has_high) Row("device.sm", Rel::kLe, high, ReasonCode::kSmTooNew);
  // If it is not declared, no SM is supported.
  if (platform_ == Platform::kCuda && !Has("min_sm")) {
    Row("device.sm", Rel::kLe, 0, ReasonCode::kDeviceCapabilityUnsupported);
  }
  return {};
}

Status KernelReader::Generation() {
  std::vector<std::string> names;
  LZ_RETURN_IF_ERROR(Names("supported_generations", &names));
  int64_t mask = 0;
  for (const std::string& name : names) {
    const int generation = GenerationFromName(name);
    if (generation < 0) return Bad("supported_generations", "generations by name, \"hopper\"", name);
    mask |= int64_t{1} << generation;
  }
  if (mask) Row("device.generation", Rel::kInMask, mask, ReasonCode::kGpuGenerationUnsupported);
  int64_t number = 0;
  bool given = false;
  LZ_RETURN_IF_ERROR(Integer("requires_tensor_core_gen", 1, 99, &number, &given));
  if (given) Row("device.tensor_core_generation", Rel::kGe, number, ReasonCode::kTensorCoreGenUnsupported);
  std::string_view set;
  LZ_RETURN_IF_ERROR(Text("instruction_set", &set));
  if (!set.empty()) {
    const int64_t bits = InstructionSetFromName(set);
    if (bits == 0) return Bad("instruction_set", "wmma, mma_sync, wgmma, tcgen05.mma, mfma or xmx", std::string(set));
    Row("device.instruction_sets", Rel::kHasBits, bits, ReasonCode::kInstructionSetMismatch);
  }
  names.clear();
  LZ_RETURN_IF_ERROR(Names("cpu_isa", &names));
  int64_t isa = 0;
  for (const std::string& name : names) {
    if (IsaFromName(name) == 0) return Bad("cpu_isa", "instruction sets by name, \"avx2\"", name);
    isa |= IsaFromName(name);
  }
  if (isa) Row("device.isa", Rel::kHasBits, isa, ReasonCode::kDeviceCapabilityUnsupported);
  return {};
}

Status KernelReader::Versions() {
  constexpr auto kVersions = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"min_driver_version", "device.driver_version"},
      {"min_cuda_version", "device.cuda_version"},
  });
  for (const auto& [key, field] : kVersions) {
    std::string_view text;
    LZ_RETURN_IF_ERROR(Text(key, &text));
    if (text.empty()) continue;
    const int64_t version = VersionNumber(text);
    if (version < 0) return Bad(key, "a version, \"520.0\"", std::string(text));
    Row(field, Rel::kGe, version, ReasonCode::kDriverVersionUnsupported);
  }
  return {};
}

Status KernelReader::HeadDims() {
  constexpr auto kHeadDimKeys = std::to_array<std::string_view>(
      {"min_head_dim", "max_head_dim", "head_dim_multiple", "head_dims", "equal_head_dims"});
  const bool has_axes = HasFields({"d_qk", "d_v"});
  for (std::string_view key : kHeadDimKeys) {
    if (Has(key) && !has_axes) {
      return Bad(key, "no such key in " + std::string(operation_.id) + "; use `constraints`", *kernel_.find(key));
    }
  }
  if (!has_axes) return {};
  int64_t low = 0, high = 0, multiple = 0;
  bool has_low = false, has_high = false, has_multiple = false;
  LZ_RETURN_IF_ERROR(Integer("min_head_dim", 0, 65536, &low, &has_low));
  LZ_RETURN_IF_ERROR(Integer("max_head_dim", 1, 65536, &high, &has_high));
  LZ_RETURN_IF_ERROR(Integer("head_dim_multiple", 1, 65536, &multiple, &has_multiple));
  std::vector<int64_t> set;
  if (const auto at = kernel_.find("head_dims"); at != kernel_.end() && !at->is_null()) {
    const bool fits = at->is_array() && !at->empty() && std::all_of(at->begin(), at->end(), [](const json& v) {
                        return v.is_number_unsigned() && v.get<uint64_t>() <= 65536;
                      });
    if (!fits) return Bad("head_dims", "a list of head dimensions", *at);
    for (const json& v : *at) set.push_back(v.get<int64_t>());
  }
  const std::span<const int64_t> kept = storage_->Keep(std::move(set));
  for (std::string_view field : FieldsOfAlias("head_dim")) {
    if (has_low) Row(field, Rel::kGe, low, ReasonCode::kHeadDimInvalid);
    if (has_high) Row(field, Rel::kLe, high, ReasonCode::kHeadDimTooLarge);
    if (has_multiple) Row(field, Rel::kMultipleOf, multiple, ReasonCode::kHeadDimAlignment);
    if (!kept.empty()) rows_.push_back({field, Rel::kInSet, 0, kept, ReasonCode::kHeadDimInvalid});
    // If it is not declared, no head dimension is supported.
    if (!has_high && kept.empty() && !IsNull("max_head_dim")) Row(field, Rel::kLt, 0, ReasonCode::kHeadDimTooLarge);
  }
  bool equal = false;
  LZ_RETURN_IF_ERROR(Boolean("equal_head_dims", &equal));
  if (equal) Row("d_qk - d_v", Rel::kEq, 0, ReasonCode::kHeadDimInvalid);
  return {};
}

Status KernelReader::Lengths() {
  int64_t high = 0;
  bool given = false;
  LZ_RETURN_IF_ERROR(Integer("max_seq_len", 1, INT64_MAX, &high, &given));
  if (!given) return {};
  // Axes, or the scalars that hold the lengths of packed sequences.
  constexpr auto kLengths =
      std::to_array<std::array<std::string_view, 2>>({{"s_q", "s_kv"}, {"max_seqlen_q", "max_seqlen_kv"}});
  for (const auto& [query, key] : kLengths) {
    if (!HasFields({query, key})) continue;
    Row(query, Rel::kLe, high, ReasonCode::kSeqTooLong);
    Row(key, Rel::kLe, high, ReasonCode::kSeqTooLong);
    return {};
  }
  return Bad("max_seq_len",
             "null: the lengths of " + std::string(operation_.id) + " are not in its shapes; use `constraints`", high);
}

Status KernelReader::Gqa() {
  LZ_RETURN_IF_ERROR(Boolean("supports_gqa", &supports_gqa_));
  const Contract& contract = operation_.op->contract();
  const bool grouped_operation = std::ranges::any_of(
      contract.variants, [&](const Variant& v) { return GroupedVariantOf(contract, v.id) == operation_.id; });
  if (!supports_gqa_ && grouped_operation) {
    return Bad("supports_gqa", "true in " + std::string(operation_.id),
               Has("supports_gqa") ? *kernel_.find("supports_gqa") : json());
  }
  const bool has_heads = HasFields({"h_q", "h_kv", "group"});
  if (!supports_gqa_ && has_heads) Row("group", Rel::kEq, 1, ReasonCode::kGqaUnsupported);
  const auto at = kernel_.find("gqa_groups");
  if (at == kernel_.end() || at->is_null()) return {};
  const bool fits =
      supports_gqa_ && at->is_array() && !at->empty() && std::all_of(at->begin(), at->end(), [](const json& v) {
        return v.is_number_unsigned() && v.get<uint64_t>() >= 1 && v.get<uint64_t>() <= 65536;
      });
  if (!fits) return Bad("gqa_groups", "a list of group sizes, with supports_gqa: true", *at);
  std::vector<int64_t> set;
  for (const json& v : *at) set.push_back(v.get<int64_t>());
  if (has_heads && GroupedVariantOf(contract, operation_.id).empty()) {
    rows_.push_back({"group", Rel::kInSet, 0, storage_->Keep(std::move(set)), ReasonCode::kGqaHeadsMismatch});
  }
  return {};
}

}  // namespace lz
