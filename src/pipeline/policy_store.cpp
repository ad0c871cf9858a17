#include "pipeline/policy_store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "platform/device.h"

namespace lz {
namespace {

// A condition as a rule on one operation, or nothing when the operation has no such field. Names become numbers.
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
      std::string_view choices = op.contract().params[size_t(f.param)].choices;
      for (int64_t i = 0;; ++i) {
        take(i, choices.substr(0, choices.find('|')));
        if (choices.find('|') == choices.npos) break;
        choices.remove_prefix(choices.find('|') + 1);
      }
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

}  // namespace

std::vector<PolicyLayer> Policies::LayersOf(const Slot& slot) const {
  std::vector<PolicyLayer> layers = process_;
  layers.insert(layers.end(), code_.begin(), code_.end());
  layers.insert(layers.end(), slot.layers.begin(), slot.layers.end());
  return layers;
}

Result<Policies::Compiled*> Policies::Compile(std::span<const PolicyLayer> layers) {
  auto policy = ParsePolicy(layers);
  if (!policy.ok()) return policy.TakeStatus();
  LZ_RETURN_IF_ERROR(CheckRules(*policy));
  Compiled& compiled = compiled_.emplace_back();
  compiled.policy = std::move(*policy);
  return &compiled;
}

Status Policies::Recompile() {
  if (slots_.empty()) slots_.emplace_back();
  std::vector<Compiled*> fresh;
  for (const Slot& slot : slots_) {
    auto compiled = Compile(LayersOf(slot));
    if (!compiled.ok()) return compiled.TakeStatus();
    fresh.push_back(*compiled);
  }
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].current = fresh[i];
  return {};
}

Status Policies::Load(std::vector<PolicyLayer> layers) {
  std::lock_guard lock(mutex_);
  std::vector<PolicyLayer> before = std::exchange(process_, std::move(layers));
  Status status = Recompile();
  if (!status.ok()) process_ = std::move(before);
  return status;
}

Status Policies::Configure(std::string json) {
  std::lock_guard lock(mutex_);
  std::vector<PolicyLayer> before = code_;
  // The same words again (a lock in a loop) move to the top instead of piling up.
  std::erase_if(code_, [&](const PolicyLayer& layer) { return layer.yaml == json; });
  code_.push_back({"lz.configure", std::move(json)});
  Status status = Recompile();
  if (!status.ok()) code_ = std::move(before);
  return status;
}

Result<int64_t> Policies::Scope(int64_t parent, std::string json) {
  std::lock_guard lock(mutex_);
  if (slots_.empty()) LZ_RETURN_IF_ERROR(Recompile());
  if (parent < 0 || size_t(parent) >= slots_.size()) {
    return Status(StatusCode::kInvalidRequest,
                  {.field = "policy scope", .wanted = "an open scope", .got = std::to_string(parent)});
  }
  std::string key = slots_[size_t(parent)].key + "\n" + json;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].key == key) return int64_t(i);
  }
  Slot slot;
  slot.layers = slots_[size_t(parent)].layers;
  slot.layers.push_back({"lz.policy", std::move(json)});
  slot.key = std::move(key);
  auto compiled = Compile(LayersOf(slot));
  if (!compiled.ok()) return compiled.TakeStatus();
  slot.current = *compiled;
  slots_.push_back(std::move(slot));
  return int64_t(slots_.size() - 1);
}

const Policy& Policies::policy(int64_t id) {
  std::lock_guard lock(mutex_);
  return slots_[size_t(id) < slots_.size() ? size_t(id) : 0].current->policy;
}

// Every condition must be a field of at least one operation that the rule is about.
Status Policies::CheckRules(const Policy& policy) const {
  for (const Rule& rule : policy.rules) {
    for (const RuleCondition& c : rule.conditions) {
      bool known = false;
      std::deque<std::string> names;
      std::deque<std::vector<int64_t>> sets;
      for (const auto& op : registry_.operations()) known |= AsConstraints(*op, c, &names, &sets).has_value();
      if (known) continue;
      return Status(StatusCode::kConfig, {.field = rule.origin + ": rules.match." + c.field,
                                          .wanted = "a field of an operation, the device or the policy",
                                          .got = "'" + c.field + "'" + (c.text.empty() ? "" : " == '" + c.text + "'"),
                                          .fix = "`layerzero explain` shows the fields of an operation"});
    }
  }
  return {};
}

Result<std::vector<ResolvedRule>> Policies::ResolveRules(const Policy& policy, const Operation& op,
                                                         std::string_view id) {
  std::vector<ResolvedRule> resolved;
  for (const Rule& rule : policy.rules) {
    if (!GlobMatch(rule.operation, id) && rule.operation != op.name()) continue;
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
    auto watched = registry_.Watch(op, rows);
    if (!watched.ok()) return watched.TakeStatus();
    resolved.push_back({&rule, std::move(*watched)});
  }
  return resolved;
}

Result<const OperationPolicy*> Policies::For(int64_t id, const Operation& op) {
  std::lock_guard lock(mutex_);
  if (slots_.empty()) LZ_RETURN_IF_ERROR(Recompile());
  Compiled& compiled = *slots_[size_t(id) < slots_.size() ? size_t(id) : 0].current;
  if (auto at = compiled.operations.find(&op); at != compiled.operations.end()) {
    return static_cast<const OperationPolicy*>(at->second.get());
  }
  auto result = std::make_unique<OperationPolicy>();
  const Policy& p = compiled.policy;
  result->policy = &p;
  result->facts = {p.deterministic, p.strict_mode, p.allow_adaptation};
  for (const Variant& variant : op.contract().variants) {
    auto rules = ResolveRules(p, op, variant.id);
    if (!rules.ok()) return rules.TakeStatus();
    result->rules.push_back(std::move(*rules));
    std::vector<std::string_view> names = {variant.id, op.name()};
    names.insert(names.end(), op.contract().aliases.begin(), op.contract().aliases.end());
    std::string lock_id;
    for (const LockMatch& match : LocksFor(p, names)) {
      const bool covers_more = match.group || match.name != variant.id;
      if (covers_more && !registry_.FindKernel(variant.id, match.kernel) && registry_.FindKernel("", match.kernel)) {
        continue;  // the kernel is another operation's of the group
      }
      lock_id = match.kernel;
      break;
    }
    result->locks.push_back(std::move(lock_id));
  }
  return static_cast<const OperationPolicy*>((compiled.operations[&op] = std::move(result)).get());
}

}  // namespace lz
