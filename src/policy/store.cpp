#include "policy/store.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/json_reader.h"
#include "platform/device.h"
#include "policy/keys.h"
#include "policy/names.h"

namespace lz {
namespace {

// A condition as a rule on one operation, or nothing if the operation has no such field. Names become numbers.
std::optional<std::vector<Constraint>> AsConstraints(const Operation& op, const RuleCondition& c,
                                                     std::deque<std::string>* names,
                                                     std::deque<std::vector<int64_t>>* sets) {
  std::string_view name = c.field;
  std::optional<uint16_t> field = op.FindField(name);
  for (std::string_view candidate : PolicyFieldNames(c.field)) {
    if ((field = op.FindField(candidate))) {
      name = candidate;
      break;
    }
  }
  if (!field && !op.FindField(name)) {
    if ((field = op.FindField("device." + c.field))) {
      name = names->emplace_back("device." + c.field);
    } else {
      return std::nullopt;
    }
  }
  if (c.text.empty()) return std::vector<Constraint>{{name, c.rel, c.operand}};
  const Field& f = op.fields()[*field];
  std::vector<int64_t> values;
  const auto take = [&](int64_t value, std::string_view text) {
    if (GlobMatch(c.text, text)) values.push_back(value);
  };
  switch (f.type) {
    case FieldType::kDType:
      for (size_t i = 1; i < kDTypes.size(); ++i) {
        if (GlobMatch(c.text, kDTypes[i].name) || c.text == kDTypes[i].short_name) values.push_back(int64_t(i));
      }
      break;
    case FieldType::kPlatform:
      for (size_t i = 0; i < kPlatformNames.size(); ++i) take(int64_t(i), kPlatformNames[i]);
      break;
    case FieldType::kGeneration:
      for (size_t i = 0; i < kGpuGenerations.size(); ++i) take(int64_t(i), kGpuGenerations[i]);
      break;
    case FieldType::kBool: take(0, "false"), take(1, "true"); break;
    case FieldType::kChoice: {
      for (int64_t i = 0; !ChoiceName(f.choices, i).empty(); ++i) take(i, ChoiceName(f.choices, i));
      break;
    }
    default: return std::nullopt;
  }
  if (c.rel == Rel::kNe) {
    std::vector<Constraint> rows;
    for (int64_t v : values) rows.push_back({name, Rel::kNe, v});
    return rows;
  }
  sets->push_back(std::move(values));
  return std::vector<Constraint>{{name, Rel::kInSet, 0, sets->back()}};
}

// Removes from `below` the keys that `above` sets again, so that the layers of code are at most the keys they set.
void EraseOverlaid(const nlohmann::json& above, nlohmann::json* below) {
  for (const auto& [key, value] : above.items()) {
    const auto at = below->find(key);
    if (at == below->end()) continue;
    if (key == "locks" && value.is_object() && at->is_object()) {
      for (const auto& [name, kernel] : value.items()) {
        const std::string normal = NormalLockName(name);
        for (auto lock = at->begin(); lock != at->end();) {
          lock = NormalLockName(lock.key()) == normal ? at->erase(lock) : std::next(lock);
        }
      }
    } else if (IsPolicySection(key) && value.is_object() && at->is_object()) {
      EraseOverlaid(value, &*at);
    } else {
      *at = nullptr;
    }
    if (at->empty()) below->erase(at);
  }
}

bool AnyOperation(const Registry& registry, const std::function<bool(const Operation&, std::string_view id)>& test) {
  return std::ranges::any_of(registry.operations(), [&](const auto& op) {
    return std::ranges::any_of(op->contract().variants, [&](const Variant& v) { return test(*op, v.id); });
  });
}

}  // namespace

Result<std::shared_ptr<Policies::Compiled>> Policies::Compile(int64_t id) {
  std::vector<const Slot*> scopes;  // the innermost first
  for (int64_t at = id; at != 0; at = slots_[size_t(at)].parent) scopes.push_back(&slots_[size_t(at)]);
  std::string key = std::to_string(process_version_);
  for (const PolicyLayer& layer : code_) key += "\n" + layer.yaml;
  for (auto at = scopes.rbegin(); at != scopes.rend(); ++at) key += "\n\n" + (*at)->json;
  const auto known = std::ranges::find_if(compiled_, [&](const auto& c) { return c->key == key; });
  if (known != compiled_.end()) {
    compiled_.splice(compiled_.begin(), compiled_, known);
    return compiled_.front();
  }
  std::vector<PolicyLayer> layers = process_;
  layers.insert(layers.end(), code_.begin(), code_.end());
  for (auto at = scopes.rbegin(); at != scopes.rend(); ++at) layers.push_back({"lz.policy", (*at)->json, true});
  auto policy = ParsePolicy(layers);
  if (!policy.ok()) return policy.TakeStatus();
  LZ_RETURN_IF_ERROR(CheckNames(*policy));
  if (all_named_) LZ_RETURN_IF_ERROR(CheckKernelNames(*policy, registry_, later_));
  auto compiled = std::make_shared<Compiled>();
  compiled->key = std::move(key);
  compiled->policy = std::make_shared<const Policy>(std::move(*policy));
  compiled_.push_front(compiled);
  if (compiled_.size() > kMaxCompiled) compiled_.pop_back();
  return compiled;
}

Result<std::shared_ptr<Policies::Compiled>> Policies::Of(int64_t id) {
  if (!current_) LZ_RETURN_IF_ERROR(Recompile());
  if (id <= 0 || size_t(id) >= slots_.size()) return current_;
  Slot& slot = slots_[size_t(id)];
  if (slot.version == version_) {
    if (auto compiled = slot.compiled.lock()) return compiled;
  }
  auto compiled = Compile(id);
  if (!compiled.ok()) return compiled;
  slot.compiled = *compiled;
  slot.version = version_;
  return compiled;
}

Status Policies::Recompile() {
  if (slots_.empty()) slots_.push_back({});
  auto compiled = Compile(0);
  if (!compiled.ok()) return compiled.TakeStatus();
  current_ = std::move(*compiled);
  ++version_;
  for (const auto& other : compiled_) {  // of earlier settings: their conditions leave the classes
    if (other != current_) other->operations.clear();
  }
  return {};
}

Status Policies::Load(std::vector<PolicyLayer> layers) {
  std::lock_guard lock(mutex_);
  std::vector<PolicyLayer> before = std::exchange(process_, std::move(layers));
  ++process_version_;
  Status status = Recompile();
  if (!status.ok()) process_ = std::move(before), ++process_version_;
  return status;
}

Status Policies::Configure(const std::string& json) {
  std::lock_guard lock(mutex_);
  auto fresh = ReadJson(json, {.what = "lz.configure"});
  if (!fresh.ok()) return fresh.TakeStatus();
  std::vector<PolicyLayer> layers;
  for (const PolicyLayer& layer : code_) {
    auto keys = ReadJson(layer.yaml, {.what = "lz.configure"});
    if (fresh->is_object()) EraseOverlaid(*fresh, &*keys);
    if (!keys->empty()) layers.push_back({layer.name, keys->dump()});
  }
  layers.push_back({"lz.configure", fresh->dump()});
  std::swap(code_, layers);
  Status status = Recompile();
  if (!status.ok()) code_ = std::move(layers);
  return status;
}

Result<int64_t> Policies::Scope(int64_t parent, std::string json) {
  std::lock_guard lock(mutex_);
  if (!current_) LZ_RETURN_IF_ERROR(Recompile());
  if (parent < 0 || size_t(parent) >= slots_.size()) {
    return Status(StatusCode::kInvalidRequest,
                  {.field = "policy scope", .wanted = "an open scope", .got = std::to_string(parent)});
  }
  if (parent != 0 && slots_[size_t(parent)].json == json) return parent;  // the same settings on top add nothing
  if (const auto at = slot_of_.find({parent, json}); at != slot_of_.end()) return at->second;
  if (slots_.size() > kMaxScopes) {
    return Status(StatusCode::kConfig, {.field = "policy scope",
                                        .wanted = "at most " + std::to_string(kMaxScopes) + " different scopes",
                                        .got = "one more",
                                        .fix = "use scopes of the same keys and values again"});
  }
  const auto id = int64_t(slots_.size());
  slots_.push_back({.parent = parent, .json = std::move(json), .version = version_});
  auto compiled = Compile(id);
  if (!compiled.ok()) {
    slots_.pop_back();
    return compiled.TakeStatus();
  }
  slots_.back().compiled = *compiled;
  slot_of_.emplace(std::pair(parent, std::string_view(slots_.back().json)), id);
  return id;
}

Result<std::shared_ptr<const Policy>> Policies::policy(int64_t id) {
  std::lock_guard lock(mutex_);
  auto compiled = Of(id);
  if (!compiled.ok()) return compiled.TakeStatus();
  return (*compiled)->policy;
}

// Locks must cover an operation, rules must be about one, and each condition must be a field of an operation that its
// rule is about.
Status Policies::CheckNames(const Policy& policy) const {
  for (const auto& lock : policy.lock_names) {
    const auto& [name, origin] = lock;
    const auto covers = [&](const Operation& op, auto id) { return LockCovers(lock.first, NamesOf(op, id)); };
    if (AnyOperation(registry_, covers)) continue;
    return Status(StatusCode::kConfig, {.field = origin + ": locks." + name,
                                        .wanted = "an operation, an alias or a group of operations",
                                        .got = "'" + name + "'",
                                        .fix = NearestOperationFix(registry_, name)});
  }
  for (const Rule& rule : policy.rules) {
    if (!AnyOperation(registry_, [&](const Operation& op, auto id) { return IsAbout(rule, op, id); })) {
      return Status(StatusCode::kConfig, {.field = rule.origin + ": rules.match.operation",
                                          .wanted = "an operation, or a glob that matches one",
                                          .got = "'" + rule.operation + "'",
                                          .fix = NearestOperationFix(registry_, rule.operation)});
    }
    for (const RuleCondition& c : rule.conditions) LZ_RETURN_IF_ERROR(CheckCondition(rule, c));
  }
  return CheckFactNames(policy, registry_);
}

Status Policies::CheckCondition(const Rule& rule, const RuleCondition& c) const {
  std::deque<std::string> names;
  std::deque<std::vector<int64_t>> sets;
  for (const auto& op : registry_.operations()) {
    if (AsConstraints(*op, c, &names, &sets)) return {};
  }
  return Status(StatusCode::kConfig, {.field = rule.origin + ": rules.match." + c.field,
                                      .wanted = "a field of an operation, the device or the policy",
                                      .got = "'" + c.field + "'" + (c.text.empty() ? "" : " == '" + c.text + "'"),
                                      .fix = "`layerzero explain` shows the fields of an operation"});
}

Result<std::vector<ResolvedRule>> Policies::ResolveRules(const Policy& policy, const Operation& op,
                                                         std::string_view id) {
  std::vector<ResolvedRule> resolved;
  for (const Rule& rule : policy.rules) {
    if (!IsAbout(rule, op, id)) continue;
    std::deque<std::string> names;
    std::deque<std::vector<int64_t>> sets;
    std::vector<Constraint> rows;
    bool applies = true;
    for (const RuleCondition& c : rule.conditions) {
      auto constraints = AsConstraints(op, c, &names, &sets);
      if (!constraints) {
        applies = false;
        break;
      }
      rows.insert(rows.end(), constraints->begin(), constraints->end());
    }
    if (!applies) continue;
    auto thresholds = registry_.AddThresholds(op, rows);
    if (!thresholds.ok()) return thresholds.TakeStatus();
    resolved.push_back({&rule, std::move(*thresholds)});
  }
  return resolved;
}

Result<std::shared_ptr<const OperationPolicy>> Policies::Resolve(std::shared_ptr<const Policy> policy,
                                                                 const Operation& op) {
  // Files and the environment were read before every library was known; their kernels may be registered until the
  // first use.
  if (all_named_) LZ_RETURN_IF_ERROR(CheckKernelNames(*policy, registry_, later_, &op));
  auto result = std::make_shared<OperationPolicy>();
  result->names_checked = all_named_;
  const Policy& p = *policy;
  result->policy = std::move(policy);
  result->facts = PolicyFactsOf(p, op);
  result->registry_changes = registry_.num_changes();
  for (const Variant& variant : op.contract().variants) {
    auto rules = ResolveRules(p, op, variant.id);
    if (!rules.ok()) return rules.TakeStatus();
    result->rules.push_back(std::move(*rules));
    std::string lock_id;
    for (const LockMatch& match : LocksFor(p, NamesOf(op, variant.id))) {
      const bool covers_more = match.group || match.name != variant.id;
      if (covers_more && !registry_.FindKernel(variant.id, match.kernel) && registry_.FindKernel("", match.kernel)) {
        continue;  // the kernel belongs to another operation of the group
      }
      lock_id = match.kernel;
      break;
    }
    result->locks.push_back(std::move(lock_id));
  }
  return std::shared_ptr<const OperationPolicy>(std::move(result));
}

Result<std::shared_ptr<const OperationPolicy>> Policies::For(int64_t id, const Operation& op) {
  std::lock_guard lock(mutex_);
  auto compiled = Of(id);
  if (!compiled.ok()) return compiled.TakeStatus();
  std::shared_ptr<const OperationPolicy>& known = (*compiled)->operations[&op];
  if (!known || known->registry_changes != registry_.num_changes() || known->names_checked != all_named_) {
    auto resolved = Resolve((*compiled)->policy, op);
    if (!resolved.ok()) return resolved;
    known = std::move(*resolved);
  }
  return known;
}

void Policies::AllNamed(LibraryNames later) {
  std::lock_guard lock(mutex_);
  all_named_ = true;
  later_ = std::move(later);
}

size_t Policies::num_scopes() const {
  std::lock_guard lock(mutex_);
  return slots_.size();
}
size_t Policies::num_compiled() const {
  std::lock_guard lock(mutex_);
  return compiled_.size();
}
size_t Policies::num_layers() const {
  std::lock_guard lock(mutex_);
  return code_.size();
}

}  // namespace lz
