// What a kernel object declares about its tensors: dtypes, quantized formats and scales, masks, layouts, KV caches,
// packed weights, workspace.
#include <algorithm>
#include <array>

#include "platform/device.h"
#include "registry/descriptor_internal.h"
#include "registry/expression.h"
#include "registry/implied_rows.h"

namespace lz {
namespace {

using nlohmann::json;

constexpr DTypeMask kFloatMasks = Mask(DType::kF64, DType::kF32, DType::kF16, DType::kBF16);
constexpr DTypeMask kAbsent = 1;  // bit 0 of a mask over dtypes

Result<DTypeMask> MaskOf(const std::vector<std::string>& names) {
  DTypeMask mask = 0;
  for (const std::string& name : names) {
    const DType dtype = DTypeFromName(name);
    if (dtype == DType::kUnknown) return Status(StatusCode::kConfig, {.got = name});
    mask |= Mask(dtype);
  }
  return mask;
}

// The optional tensors that hold the scales of quantized values.
std::vector<std::string_view> ScalesOf(const Operation& op, bool optional) {
  std::vector<std::string_view> found;
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    const Param& p = op.input(i);
    const bool scale = p.name == "scale" || p.name == "weight_scale" || p.name == "k_scale" || p.name == "v_scale";
    if (scale && (p.optional || !optional)) found.push_back(p.name);
  }
  return found;
}

}  // namespace

Status KernelReader::NoSuchKey(std::string_view key) const {
  return Bad(key, "no such key in " + std::string(operation_.id) + "; use `constraints`", *kernel_.find(key));
}

Status KernelReader::Dtypes() {
  if (Has("dtypes") && Has("supported_dtypes")) {
    return Bad("supported_dtypes", "one of dtypes and supported_dtypes", *kernel_.find("supported_dtypes"));
  }
  const std::string_view key = Has("supported_dtypes") ? "supported_dtypes" : "dtypes";
  std::vector<std::string> names;
  LZ_RETURN_IF_ERROR(Names(key, &names));
  if (names.empty()) return Bad(key, "at least one dtype", Has(key) ? *kernel_.find(key) : json());
  auto mask = MaskOf(names);
  if (!mask.ok()) return Bad(key, "dtypes by name, \"bfloat16\"", mask.status().parts().got);
  out_->spec.dtypes = *mask;
  std::string_view only;
  LZ_RETURN_IF_ERROR(Text("requires_dtype", &only));
  if (only.empty()) return {};
  auto one = MaskOf({std::string(only)});
  if (!one.ok() || !(*one & *mask)) return Bad("requires_dtype", "one of " + std::string(key), std::string(only));
  out_->spec.dtypes = *one;
  return {};
}

// `supports_fp8` and similar flags add a format that a list may not exclude on purpose, so false together with a list
// that contains the format is a contradiction.
Status KernelReader::DtypeFlags() {
  struct Flag {
    std::string_view key;
    DTypeMask dtypes;  // if the operation has no formats
    std::array<std::string_view, 2> formats;
  };
  constexpr auto kFlags = std::to_array<Flag>({
      {"supports_bfloat16", Mask(DType::kBF16), {}},
      {"supports_fp8", Mask(DType::kF8E4M3, DType::kF8E5M2), {"fp8_e4m3", "fp8_e5m2"}},
      {"supports_int8", Mask(DType::kI8), {"int8"}},
      {"supports_mxfp4", 0, {"mxfp4"}},
      {"supports_nvfp4", 0, {"nvfp4"}},
  });
  std::vector<std::string> formats;
  LZ_RETURN_IF_ERROR(Names("supported_quant_dtypes", &formats));
  const bool has_formats = !QuantFormatsOf(*operation_.op).empty();
  for (const Flag& flag : kFlags) {
    bool value = false, given = false;
    LZ_RETURN_IF_ERROR(Boolean(flag.key, &value, &given));
    if (!given) continue;
    if (has_formats && !flag.formats[0].empty()) {
      for (std::string_view name : flag.formats) {
        if (name.empty()) continue;
        const bool listed = std::ranges::find(formats, name) != formats.end();
        if (!value && listed) return Bad(flag.key, "true, as supported_quant_dtypes has " + std::string(name), false);
        if (value && !listed) formats.emplace_back(name);
      }
      continue;
    }
    if (!value && (out_->spec.dtypes & flag.dtypes)) return Bad(flag.key, "true, as dtypes has one of them", false);
    if (value && !flag.dtypes) return NoSuchKey(flag.key);
    if (value) out_->spec.dtypes |= flag.dtypes;
  }
  return QuantFormats(formats);
}

Status KernelReader::QuantFormats(const std::vector<std::string>& formats) {
  if (formats.empty()) return {};
  const std::string_view choices = QuantFormatsOf(*operation_.op);
  if (choices.empty()) return NoSuchKey("supported_quant_dtypes");
  std::vector<int64_t> set;
  for (const std::string& name : formats) {
    set.push_back(ChoiceIndex(choices, name));
    if (set.back() < 0) return Bad("supported_quant_dtypes", "some of " + std::string(choices), name);
  }
  std::ranges::sort(set);
  rows_.push_back({"format", Rel::kInSet, 0, storage_->Keep(std::move(set)), ReasonCode::kQuantFormatUnsupported});
  return {};
}

Status KernelReader::QuantScales() {
  const Operation& op = *operation_.op;
  bool needed = false, zero_point = false;
  LZ_RETURN_IF_ERROR(Boolean("quantization_requires_scales", &needed));
  if (needed && ScalesOf(op, false).empty()) return NoSuchKey("quantization_requires_scales");
  if (needed) {
    for (std::string_view name : ScalesOf(op, true)) {
      Accept(name);
      Row(storage_->Keep(std::string(name) + ".given"), Rel::kEq, 1, ReasonCode::kQuantScalesRequired);
    }
  }
  LZ_RETURN_IF_ERROR(Boolean("quantization_zero_point", &zero_point));
  if (zero_point && !op.InputIndex("zero_point")) return NoSuchKey("quantization_zero_point");
  if (zero_point) Accept("zero_point");
  std::string_view granularity;
  LZ_RETURN_IF_ERROR(Text("quantization_scale_granularity", &granularity));
  if (granularity.empty()) return {};
  if (ScalesOf(op, false).empty()) return NoSuchKey("quantization_scale_granularity");
  const bool per_head = op.InputIndex("k_scale").has_value();  // the contract's shape is (h_kv)
  if (granularity == (per_head ? "per_head" : "per_tensor")) {
    if (per_head) return {};
    for (std::string_view name : ScalesOf(op, false)) {
      Row(storage_->Keep(std::string(name) + ".one_element"), Rel::kEq, 1, ReasonCode::kQuantGranularity);
    }
    return {};
  }
  return Bad("quantization_scale_granularity",
             std::string(per_head ? "\"per_head\"" : "\"per_tensor\"") +
                 ", or `constraints`: others are not supported in this version",
             std::string(granularity));
}

Status KernelReader::PackedWeights() {
  bool packed = false;
  LZ_RETURN_IF_ERROR(Boolean("requires_packed_weights", &packed));
  if (!packed) return {};
  const auto input = operation_.op->InputIndex("packed");
  if (!input) return NoSuchKey("requires_packed_weights");
  Accept("packed");
  Row("packed.given", Rel::kEq, 1, ReasonCode::kPackedWeightsRequired);
  return {};
}

Status KernelReader::MaskTypes() {
  std::vector<std::string> types;
  LZ_RETURN_IF_ERROR(Names("supported_attn_mask_types", &types));
  if (types.empty()) return {};
  if (!operation_.op->InputIndex("attn_mask")) return NoSuchKey("supported_attn_mask_types");
  DTypeMask mask = 0;
  for (const std::string& type : types) {
    const DTypeMask bits = type == "none"    ? kAbsent
                           : type == "bool"  ? Mask(DType::kBool)
                           : type == "float" ? kFloatMasks
                                             : 0;
    if (!bits) return Bad("supported_attn_mask_types", "some of none, bool, float", type);
    mask |= bits;
  }
  const bool some = mask != kAbsent;
  bool supports = some;
  LZ_RETURN_IF_ERROR(Boolean("supports_attn_mask", &supports));
  if (supports != some) return Bad("supported_attn_mask_types", "what supports_attn_mask says", types);
  if (!some) return {};  // a mask that is not accepted is refused like every optional argument
  Accept("attn_mask");
  MaskRow("attn_mask.dtype", int64_t(mask), ReasonCode::kAttnMaskUnsupported);
  return {};
}

// Adds a row with those of `names` that are layouts of the operation; layouts of other operations that the same kernel
// serves are skipped.
Status KernelReader::LayoutRow(std::string_view key, const std::vector<std::string>& names, ReasonCode code) {
  const std::vector<std::string>& known = operation_.op->layout_names();
  std::vector<int64_t> set;
  for (size_t i = 0; i < known.size(); ++i) {
    if (std::ranges::find(names, known[i]) != names.end()) set.push_back(int64_t(i));
  }
  std::string wanted;
  for (const std::string& name : known) wanted += (wanted.empty() ? "" : ", ") + name;
  if (set.empty()) return Bad(key, "some of " + wanted + " in " + std::string(operation_.id), names);
  if (set.size() == known.size()) return {};
  if (set.size() == 1) {
    Row("layout", Rel::kEq, set[0], code);
  } else {
    rows_.push_back({"layout", Rel::kInSet, 0, storage_->Keep(std::move(set)), code});
  }
  return {};
}

Status KernelReader::Layouts() {
  std::vector<std::string> names;
  LZ_RETURN_IF_ERROR(Names("requires_layouts", &names));
  if (names.empty()) {
    return Bad("requires_layouts", "at least one layout, or [\"any\"]",
               Has("requires_layouts") ? *kernel_.find("requires_layouts") : json());
  }
  constexpr auto kLayouts = std::to_array<std::string_view>({"any", "BSHD", "BHSD", "NHD", "HND"});
  for (const std::string& name : names) {
    const bool known = std::ranges::find(kLayouts, name) != kLayouts.end();
    if (!known) return Bad("requires_layouts", "any, BSHD, BHSD, NHD or HND", name);
  }
  const bool any = std::ranges::find(names, "any") != names.end();
  if (any && names.size() > 1) return Bad("requires_layouts", "[\"any\"] alone, or layouts", names);
  const bool has_layouts = !operation_.op->layout_names().empty();
  if (!any && !has_layouts) {
    return Bad("requires_layouts", "[\"any\"]: " + std::string(operation_.id) + " has one layout", names);
  }
  if (!any) LZ_RETURN_IF_ERROR(LayoutRow("requires_layouts", names, ReasonCode::kLayoutUnsupported));
  std::string_view produced;
  LZ_RETURN_IF_ERROR(Text("produces_layout", &produced));
  // Results have the layout of the call.
  if (produced.empty() || (names.size() == 1 && produced == names[0])) return {};
  return Bad("produces_layout", "the one layout of requires_layouts: conversions are not supported in this version",
             std::string(produced));
}

Status KernelReader::KvCache() {
  const std::vector<std::string_view> caches = CachesOf(*operation_.op);
  std::vector<std::string> names;
  LZ_RETURN_IF_ERROR(Names("supports_kv_cache_dtypes", &names));
  if (!names.empty()) {
    if (caches.empty()) return NoSuchKey("supports_kv_cache_dtypes");
    auto mask = MaskOf(names);
    if (!mask.ok()) return Bad("supports_kv_cache_dtypes", "dtypes by name, \"int8\"", mask.status().parts().got);
    for (std::string_view cache : caches) {
      MaskRow(storage_->Keep(std::string(cache) + ".dtype"), int64_t(*mask), ReasonCode::kKvCacheDtypeMismatch);
    }
  }
  names.clear();
  LZ_RETURN_IF_ERROR(Names("supports_kv_strategies", &names));
  int64_t strategies = names.empty() ? 0 : 1;  // a policy may name none
  for (const std::string& name : names) {
    const int64_t strategy = ChoiceIndex(kKvStrategies, name);
    if (strategy < 1) return Bad("supports_kv_strategies", "some of contiguous, paged", name);
    strategies |= int64_t{1} << strategy;
  }
  if (strategies != 0) MaskRow("policy.kv_cache.strategy", strategies, ReasonCode::kKvStrategyUnsupported);
  names.clear();
  LZ_RETURN_IF_ERROR(Names("supports_kv_cache_layouts", &names));
  if (names.empty()) return {};
  if (caches.empty()) return NoSuchKey("supports_kv_cache_layouts");
  if (!operation_.op->layout_names().empty()) {
    return LayoutRow("supports_kv_cache_layouts", names, ReasonCode::kKvCacheLayoutMismatch);
  }
  if (std::ranges::find(names, "NHD") != names.end()) return {};  // the contract's layout
  return Bad("supports_kv_cache_layouts", "NHD among them: pages of " + std::string(operation_.id) + " have no other",
             names);
}

Status KernelReader::Workspace() {
  const auto at = kernel_.find("workspace_bytes");
  if (at == kernel_.end() || at->is_null()) return {};
  const bool number = at->is_number_unsigned() && at->get<uint64_t>() <= uint64_t(INT64_MAX);
  if (!number && !at->is_string()) return Bad("workspace_bytes", "a number of bytes or an expression of axes", *at);
  std::string text = number ? at->dump() : GridFormula(at->get_ref<const std::string&>(), 128);
  const auto parsed =
      Expression::Parse(text, [&](std::string_view name) { return operation_.op->ResolveVariable(name); });
  if (!parsed.ok()) {
    return Bad("workspace_bytes", "an expression of the axes of " + std::string(operation_.id), *at);
  }
  out_->workspace_bytes = storage_->Keep(std::move(text));
  return {};
}

}  // namespace lz
