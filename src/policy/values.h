// One value of a policy layer, checked against its key's row, as JSON whose text is canonical (equal values,
// equal text).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "policy/keys.h"
#include "policy/policy.h"
#include "policy/yaml.h"

namespace lz {

// The key's default.
nlohmann::json DefaultValue(const PolicyKey& key);
// Every type except kRules. Entries of kLocks may be null (unlock).
Result<nlohmann::json> ParseValue(const PolicySource& source, const PolicyKey& key, const YamlNode& node);
// The value of `rules`, one Rule per alternative of a list.
Result<std::vector<Rule>> ParseRules(const PolicySource& source, const YamlNode& node);

nlohmann::json RuleToJson(const Rule& rule);  // as it would be written in a file, without the origin
// "75-79" or "89"; empty if it is neither.
std::optional<SmRange> ParseSmRange(std::string_view text);
std::optional<int64_t> ParseInteger(std::string_view text);
// Letters, digits and _ - . : / + of library names, kernel ids and operations; `globs` admits * and ?.
bool IsName(std::string_view text, bool globs);
std::string Dump(const nlohmann::json& value);
// HOME, else what the system knows of this user; empty: neither.
std::string HomeFolder();
// The path with a leading "~" replaced by the home folder, if that is known.
std::string WithHome(const std::string& path);

}  // namespace lz
