// Parses the text of one policy layer to a tree: YAML (which includes JSON) without anchors, tags and second documents,
// bounded in size and depth, with the line of every value.
//   auto root = ReadYaml({"layerzero.yaml", text});
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace lz {

inline constexpr size_t kMaxPolicyBytes = size_t{1} << 20;
inline constexpr int kMaxPolicyDepth = 16;

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  bool quoted = false;
  int line = 0;                 // from 1
  std::string text;             // kScalar
  std::vector<YamlNode> items;  // items of a list, or values of a map
  std::vector<YamlNode> keys;   // keys of a map: scalars, no duplicates
};
bool IsUtf8(std::string_view text);
// The node's name in error messages: "'abc'", "a list", "nothing".
std::string GotText(const YamlNode& node);

// The place of a layer's mistakes: makes "layerzero.yaml:12: cache.max_size".
struct PolicySource {
  std::string_view name;
  std::string_view text;
  bool is_scope = false;  // keys of the whole process are refused

  std::string At(int line) const;  // one line of JSON (code, environment) has no line numbers
  Status Error(int line, std::string_view key, std::string wanted, std::string got, std::string fix = {}) const;
  Status Error(const YamlNode& node, std::string_view key, std::string wanted, std::string fix = {}) const {
    return Error(node.line, key, std::move(wanted), GotText(node), std::move(fix));
  }
};

// An empty text is a kNull.
Result<YamlNode> ReadYaml(const PolicySource& source);

}  // namespace lz
