// Rules of a policy: `match` (fields of a call, any value of a list) and actions (prefer, avoid, deny,
// allowlist, lock).
#include <algorithm>
#include <array>
#include <limits>

#include "platform/device.h"
#include "policy/values.h"

namespace lz {
namespace {

using nlohmann::json;
using Kind = YamlNode::Kind;

constexpr size_t kMaxAlternatives = 64;  // per rule, after its lists are multiplied out
constexpr size_t kMaxRules = 4096;       // per layer

// The kind of a field's values, which decides how text becomes an operand.
enum class FieldValues : uint8_t {
  kAny,         // not known here: an integer, a boolean or a name
  kNumber,      // integers only
  kSm,          // 90 or 9.0
  kDriver,      // 580.65 = 580065; a major number alone is allowed
  kCuda,        // 13.0 = 13000; a major number alone is allowed
  kGeneration,  // names of kGpuGenerations
};

struct FieldAlias {
  std::string_view name;
  FieldValues values;
  std::array<std::string_view, 4> fields;  // most specific first, empty at the end
};

constexpr auto kAliases = std::to_array<FieldAlias>({
    {"head_dim", FieldValues::kNumber, {"d", "d_qk", "d_ckv"}},
    {"seq_len", FieldValues::kNumber, {"s_kv", "total_kv", "s", "s_q"}},
    {"seq_len_q", FieldValues::kNumber, {"s_q", "total_q", "s"}},
    {"seq_len_k", FieldValues::kNumber, {"s_kv", "total_kv", "s"}},
    {"batch_size", FieldValues::kNumber, {"b"}},
    {"num_heads", FieldValues::kNumber, {"h_q", "h"}},
    {"num_kv_heads", FieldValues::kNumber, {"h_kv"}},
    {"is_causal", FieldValues::kAny, {"causal"}},
    {"is_cuda_graph_capturing", FieldValues::kAny, {"capturing"}},
    {"requires_deterministic", FieldValues::kAny, {"policy.deterministic"}},
    {"tp_size", FieldValues::kNumber, {"policy.tp.size"}},
    {"kv_cache_strategy", FieldValues::kAny, {"policy.kv_cache.strategy"}},
    {"platform", FieldValues::kAny, {"device.platform"}},
    {"isa", FieldValues::kAny, {"device.isa"}},
    {"sm", FieldValues::kSm, {"device.sm"}},
    {"device.sm", FieldValues::kSm, {"device.sm"}},
    {"generation", FieldValues::kGeneration, {"device.generation"}},
    {"gpu_generation", FieldValues::kGeneration, {"device.generation"}},
    {"device.generation", FieldValues::kGeneration, {"device.generation"}},
    {"driver_version", FieldValues::kDriver, {"device.driver_version"}},
    {"device.driver_version", FieldValues::kDriver, {"device.driver_version"}},
    {"cuda_version", FieldValues::kCuda, {"device.cuda_version"}},
    {"device.cuda_version", FieldValues::kCuda, {"device.cuda_version"}},
});

const FieldAlias* FindAlias(std::string_view name) {
  for (const FieldAlias& alias : kAliases) {
    if (alias.name == name) return &alias;
  }
  return nullptr;
}

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

Rel TakeRelation(std::string_view& text) {
  struct Spelling {
    std::string_view text;
    Rel rel;
  };
  constexpr auto kSpellings = std::to_array<Spelling>(
      {{">=", Rel::kGe}, {"<=", Rel::kLe}, {"==", Rel::kEq}, {"!=", Rel::kNe}, {">", Rel::kGt}, {"<", Rel::kLt}});
  for (const Spelling& spelling : kSpellings) {
    if (!text.starts_with(spelling.text)) continue;
    text = Trim(text.substr(spelling.text.size()));
    return spelling.rel;
  }
  return Rel::kEq;
}

// "9.0" with `minor_unit` 1 and `major_unit` 10 is 90.
std::optional<int64_t> ParseVersion(std::string_view text, int64_t major_unit, int64_t minor_unit) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::optional<int64_t> major = ParseInteger(text.substr(0, dot));
  std::optional<int64_t> minor = ParseInteger(text.substr(dot + 1, text.find('.', dot + 1) - dot - 1));
  if (!major || !minor || *major < 0 || *major > 99999 || *minor < 0 || *minor * minor_unit >= major_unit) {
    return std::nullopt;
  }
  return *major * major_unit + *minor * minor_unit;
}

struct Operand {
  int64_t number = 0;
  std::string text;
};

std::optional<Operand> ParseOperand(FieldValues values, std::string_view text) {
  const std::optional<int64_t> number = ParseInteger(text);
  std::optional<int64_t> code;
  switch (values) {
    case FieldValues::kSm:
      code = number ? number : ParseVersion(text, 10, 1);
      if (code && *code != 0 && (*code < 30 || *code > 9999))
        code.reset();  // 9 may mean 9.0: refused rather
                       // than guessed
      break;
    case FieldValues::kDriver:
      code = number && *number > 0 && *number < 10000 ? std::optional(*number * 1000) : number;
      if (!code) code = ParseVersion(text, 1000, 1);
      break;
    case FieldValues::kCuda:
      code = number && *number > 0 && *number < 1000 ? std::optional(*number * 1000) : number;
      if (!code) code = ParseVersion(text, 1000, 10);
      break;
    case FieldValues::kNumber: code = number; break;
    case FieldValues::kAny:
    case FieldValues::kGeneration:
      code = text == "true" ? 1 : text == "false" ? 0 : number;
      if (!code && IsName(text, true) && text.find_first_not_of("0123456789.-+") != std::string_view::npos) {
        return Operand{0, std::string(text)};
      }
      break;
  }
  if (!code) return std::nullopt;
  return Operand{*code, {}};
}

std::string WantedOperand(FieldValues values) {
  switch (values) {
    case FieldValues::kSm: return "a compute capability, as 90 or 9.0";
    case FieldValues::kDriver: return "a driver version, as 580.65";
    case FieldValues::kCuda: return "a CUDA version, as 13.0";
    case FieldValues::kNumber: return "an integer";
    case FieldValues::kGeneration: return "a generation, as hopper";
    case FieldValues::kAny: break;
  }
  return "an integer, true or false, or a name";
}

// Reads one rule; the parts that lists multiply are kept separate until the end.
class RuleReader {
 public:
  RuleReader(const PolicySource& source, std::string name) : source_(source), name_(std::move(name)) {}

  Result<std::vector<Rule>> Read(const YamlNode& node) {
    if (node.kind != Kind::kMap) return source_.Error(node, name_, "a rule: {match: {...}, <action>: ...}");
    rule_.origin = source_.At(node.line);
    bool acts = false;
    for (size_t i = 0; i < node.keys.size(); ++i) {
      if (node.keys[i].text == "match") {
        LZ_RETURN_IF_ERROR(ReadMatch(node.items[i]));
      } else {
        LZ_RETURN_IF_ERROR(ReadAction(node.keys[i], node.items[i]));
        acts = true;
      }
    }
    if (!acts) return source_.Error(node.line, name_, "an action: prefer, avoid, deny, allowlist, lock", "none");
    return Expand(node);
  }

 private:
  using All = std::vector<RuleCondition>;  // all must hold

  Status ReadMatch(const YamlNode& node) {
    if (node.kind == Kind::kNull) return {};
    if (node.kind != Kind::kMap) return source_.Error(node, name_ + ".match", "a map from field to condition");
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const std::string& field = node.keys[i].text;
      const std::vector<YamlNode> one = {node.items[i]};
      const bool list = node.items[i].kind == Kind::kList;
      if (list && node.items[i].items.empty()) {
        return source_.Error(node.items[i].line, name_ + ".match." + field, "at least one value", "an empty list");
      }
      const std::vector<YamlNode>& values = list ? node.items[i].items : one;
      LZ_RETURN_IF_ERROR(field == "op" || field == "operation" ? ReadOperations(node.keys[i], values)
                                                               : ReadField(node.keys[i], values));
    }
    return {};
  }

  Status ReadOperations(const YamlNode& key, const std::vector<YamlNode>& values) {
    const std::string where = name_ + ".match." + key.text;
    if (!operations_.empty()) return source_.Error(key, where, "op or operation, not both", "remove one of them");
    for (const YamlNode& value : values) {
      std::string_view text = value.kind == Kind::kScalar ? Trim(value.text) : "";
      if (text.starts_with("==")) text = Trim(text.substr(2));
      if (!IsName(text, true)) {
        return source_.Error(value, where, "an operation's id or a glob, as attention.*",
                             text.starts_with('!') ? "list the operations that are meant" : "");
      }
      operations_.emplace_back(text);
    }
    return {};
  }

  Status ReadField(const YamlNode& key, const std::vector<YamlNode>& values) {
    const std::string where = name_ + ".match." + key.text;
    if (!IsName(key.text, false) || (key.text[0] >= '0' && key.text[0] <= '9')) {
      return source_.Error(key, where, "the name of a field, as sm, dtype, head_dim");
    }
    std::vector<All> any;
    for (const YamlNode& value : values) {
      if (value.kind != Kind::kScalar) return source_.Error(value, where, "a condition, as 128 or \">=128\"");
      All all;
      std::string_view rest = value.text;
      for (bool more = true; more;) {
        const size_t comma = rest.find(',');
        LZ_RETURN_IF_ERROR(ReadCondition(key.text, value, where, Trim(rest.substr(0, comma)), &all));
        more = comma != std::string_view::npos;
        if (more) rest = rest.substr(comma + 1);
      }
      any.push_back(std::move(all));
    }
    fields_.push_back(std::move(any));
    return {};
  }

  Status ReadCondition(const std::string& field, const YamlNode& value, const std::string& where, std::string_view text,
                       All* all) {
    const FieldAlias* alias = FindAlias(field);
    const FieldValues values = alias ? alias->values : FieldValues::kAny;
    const Rel rel = TakeRelation(text);
    const std::optional<Operand> operand = ParseOperand(values, text);
    if (!operand) {
      return source_.Error(value, where, WantedOperand(values),
                           values == FieldValues::kSm ? "write 9.0 or 90" : "conditions: > >= < <= == != and a value");
    }
    if (!operand->text.empty() && rel != Rel::kEq && rel != Rel::kNe) {
      return source_.Error(value, where, "an integer after " + std::string(RelText(rel)),
                           values == FieldValues::kGeneration ? "names have no order; use sm" : "names have no order");
    }
    if (values == FieldValues::kGeneration && !operand->text.empty()) {
      const bool known = std::any_of(kGpuGenerations.begin(), kGpuGenerations.end(),
                                     [&](std::string_view name) { return GlobMatch(operand->text, name); });
      if (!known) {
        const std::string_view near = NearestName(operand->text, kGpuGenerations);
        return source_.Error(value, where, WantedOperand(values),
                             near.empty() ? "" : "did you mean " + std::string(near) + "?");
      }
    }
    all->push_back({.field = field, .rel = rel, .operand = operand->number, .text = operand->text});
    return {};
  }

  Status ReadAction(const YamlNode& key, const YamlNode& node) {
    struct Action {
      std::string_view name;
      std::vector<std::string> Rule::*list;
      bool sources;
    };
    static constexpr auto kActions = std::to_array<Action>({{"prefer", &Rule::prefer, false},
                                                            {"avoid", &Rule::avoid, false},
                                                            {"avoid_sources", &Rule::avoid, true},
                                                            {"deny", &Rule::deny, false},
                                                            {"allowlist", &Rule::allow, false}});
    const std::string where = name_ + "." + key.text;
    if (key.text == "lock") {
      if (node.kind != Kind::kScalar || !IsName(node.text, false)) return source_.Error(node, where, "a kernel id");
      rule_.lock = node.text;
      return {};
    }
    for (const Action& action : kActions) {
      if (action.name == key.text) return ReadNames(where, node, action.sources, &(rule_.*action.list));
    }
    constexpr auto kNames =
        std::to_array<std::string_view>({"match", "prefer", "avoid", "avoid_sources", "deny", "allowlist", "lock"});
    const std::string_view near = NearestName(key.text, kNames);
    return source_.Error(key, name_, "match, prefer, avoid, avoid_sources, deny, allowlist, lock",
                         near.empty() ? "" : "did you mean " + std::string(near) + "?");
  }

  Status ReadNames(const std::string& where, const YamlNode& node, bool sources, std::vector<std::string>* names) {
    const std::vector<YamlNode> one = {node};
    const std::vector<YamlNode>& values = node.kind == Kind::kList ? node.items : one;
    if (values.empty()) return source_.Error(node.line, where, "at least one name", "an empty list");
    for (const YamlNode& value : values) {
      const bool dot = value.text.find('.') != std::string::npos;
      if (value.kind != Kind::kScalar || !IsName(value.text, true) || (sources && dot)) {
        return source_.Error(value, where,
                             sources ? "a library's name, without dots" : "a kernel id, a library or a glob");
      }
      if (std::find(names->begin(), names->end(), value.text) == names->end()) names->push_back(value.text);
    }
    return {};
  }

  // One rule for each combination of operation and alternatives.
  Result<std::vector<Rule>> Expand(const YamlNode& node) {
    if (operations_.empty()) operations_.push_back("*");
    size_t count = operations_.size();
    for (const std::vector<All>& any : fields_) count = std::min(count, kMaxAlternatives + 1) * any.size();
    if (count > kMaxAlternatives) {
      return source_.Error(node.line, name_, "lists that multiply to at most " + std::to_string(kMaxAlternatives),
                           std::to_string(count) + " combinations", "split the rule");
    }
    std::vector<Rule> rules;
    for (const std::string& operation : operations_) {
      rules.push_back(rule_);
      rules.back().operation = operation;
    }
    for (const std::vector<All>& any : fields_) {
      std::vector<Rule> next;
      for (const Rule& rule : rules) {
        for (const All& all : any) {
          next.push_back(rule);
          next.back().conditions.insert(next.back().conditions.end(), all.begin(), all.end());
        }
      }
      rules = std::move(next);
    }
    return rules;
  }

  const PolicySource& source_;
  std::string name_;  // "rules[3]"
  Rule rule_;
  std::vector<std::string> operations_;
  std::vector<std::vector<All>> fields_;  // per field: any of
};

}  // namespace

std::span<const std::string_view> PolicyFieldNames(std::string_view name) {
  const FieldAlias* alias = FindAlias(name);
  if (alias == nullptr) return {};
  size_t count = 0;
  while (count < alias->fields.size() && !alias->fields[count].empty()) ++count;
  return std::span(alias->fields).first(count);
}

Result<std::vector<Rule>> ParseRules(const PolicySource& source, const YamlNode& node) {
  std::vector<Rule> rules;
  if (node.kind == Kind::kNull) return rules;
  if (node.kind != Kind::kList) return source.Error(node, "rules", WantedText(*FindPolicyKey("rules")));
  for (size_t i = 0; i < node.items.size(); ++i) {
    Result<std::vector<Rule>> some = RuleReader(source, "rules[" + std::to_string(i) + "]").Read(node.items[i]);
    if (!some.ok()) return some.TakeStatus();
    rules.insert(rules.end(), some->begin(), some->end());
    if (rules.size() > kMaxRules) {
      return source.Error(node.items[i].line, "rules", "at most " + std::to_string(kMaxRules) + " after expansion",
                          "more");
    }
  }
  return rules;
}

json RuleToJson(const Rule& rule) {
  json match = json::object();
  match["operation"] = rule.operation;
  for (const RuleCondition& c : rule.conditions) {
    const std::string text = std::string(RelText(c.rel)) + (c.text.empty() ? std::to_string(c.operand) : c.text);
    json& field = match[c.field];
    field = field.is_null() ? text : field.get<std::string>() + ", " + text;
  }
  json out = {{"match", std::move(match)}};
  if (!rule.prefer.empty()) out["prefer"] = rule.prefer;
  if (!rule.avoid.empty()) out["avoid"] = rule.avoid;
  if (!rule.deny.empty()) out["deny"] = rule.deny;
  if (!rule.allow.empty()) out["allowlist"] = rule.allow;
  if (!rule.lock.empty()) out["lock"] = rule.lock;
  return out;
}

}  // namespace lz
