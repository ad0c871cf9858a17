#include "policy/facts.h"

#include <algorithm>
#include <set>

#include "policy/keys.h"
#include "registry/implied_rows.h"

namespace lz {
namespace {

// Bit i: the i-th of `names` is in `list`.
template <class Names>
int64_t BitsOf(const std::vector<std::string>& list, const Names& names) {
  int64_t bits = 0;
  for (size_t i = 0; i < std::size(names); ++i) {
    if (std::ranges::find(list, names[i]) != list.end()) bits |= int64_t{1} << i;
  }
  return bits;
}

std::vector<std::string_view> NamesOf(std::string_view choices) {
  std::vector<std::string_view> names;
  for (int64_t i = 0; !ChoiceName(choices, i).empty(); ++i) names.push_back(ChoiceName(choices, i));
  return names;
}

int64_t DTypeBits(const std::vector<std::string>& names) {
  if (names.empty()) return kAllAllowed;
  int64_t bits = 1;  // an absent tensor
  for (const std::string& name : names) bits |= int64_t{1} << int(DTypeFromName(name));
  return bits;
}

// What operations have of what a list of the policy may name.
struct KnownNames {
  std::set<std::string_view> dtypes, formats, numerics;

  explicit KnownNames(const Registry& registry) {
    for (const auto& op : registry.operations()) {
      for (const std::string_view cache : CachesOf(*op)) {
        const DTypeMask mask = op->input(*op->InputIndex(cache)).dtypes;
        for (size_t i = 1; i < kDTypes.size(); ++i) {
          if (mask >> i & 1) dtypes.insert(kDTypes[i].name);
        }
      }
      for (const std::string_view name : NamesOf(QuantFormatsOf(*op))) formats.insert(name);
      numerics.insert(op->contract().numerics_classes.begin(), op->contract().numerics_classes.end());
    }
  }
};

}  // namespace

PolicyFacts PolicyFactsOf(const Policy& policy, const Operation& op) {
  PolicyFacts facts{};
  const auto set = [&](PolicyField field, int64_t value) { facts[size_t(field)] = value; };
  set(PolicyField::kDeterministic, policy.deterministic);
  set(PolicyField::kStrictMode, policy.strict_mode);
  set(PolicyField::kAllowAdaptation, policy.allow_adaptation);
  set(PolicyField::kTpSize, policy.tp_size);
  set(PolicyField::kTpInvariant, policy.require_tp_invariant);
  set(PolicyField::kReductionOrder, ChoiceIndex(kReductionOrders, policy.reduction_order));
  set(PolicyField::kKvStrategy, ChoiceIndex(kKvStrategies, policy.kv_strategy));
  const auto layout = std::ranges::find(op.layout_names(), policy.kv_layout);
  const bool restricted = HasCacheLayouts(op) && layout != op.layout_names().end();
  set(PolicyField::kKvLayout, restricted ? int64_t{1} << (layout - op.layout_names().begin()) : kAllAllowed);
  set(PolicyField::kKvDtypes, DTypeBits(policy.kv_dtypes));
  set(PolicyField::kQuantFormats,
      policy.quant_formats.empty() ? kAllAllowed : BitsOf(policy.quant_formats, NamesOf(QuantFormatsOf(op))));
  set(PolicyField::kForbidNumerics, BitsOf(policy.forbid_numerics, op.contract().numerics_classes));
  return facts;
}

Status CheckFactNames(const Policy& policy, const Registry& registry) {
  if (policy.kv_dtypes.empty() && policy.quant_formats.empty() && policy.forbid_numerics.empty()) return {};
  const KnownNames known(registry);
  const struct {
    PolicyField field;
    const std::vector<std::string>& names;
    const std::set<std::string_view>& known;
    const char* wanted;
  } lists[] = {{PolicyField::kKvDtypes, policy.kv_dtypes, known.dtypes, "a dtype of KV caches: "},
               {PolicyField::kQuantFormats, policy.quant_formats, known.formats, "a quantized format: "},
               {PolicyField::kForbidNumerics, policy.forbid_numerics, known.numerics, "a numerics class: "}};
  for (const auto& list : lists) {
    const std::string key(kPolicyFields[size_t(list.field)].name);
    for (const std::string& name : list.names) {
      if (list.known.contains(name)) continue;
      const std::vector<std::string_view> all(list.known.begin(), list.known.end());
      std::string wanted = list.wanted;
      for (const std::string_view one : all) wanted += (one == all.front() ? "" : ", ") + std::string(one);
      const std::string_view near = NearestName(name, all);
      return Status(StatusCode::kConfig, {.field = policy.origins.at(key) + ": " + key,
                                          .wanted = std::move(wanted),
                                          .got = "'" + name + "'",
                                          .fix = near.empty() ? "" : "did you mean " + std::string(near) + "?"});
    }
  }
  return {};
}

}  // namespace lz
