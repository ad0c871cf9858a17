// Checks a YAML value against a key's type, range and choices.
#include "policy/values.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "core/contract.h"
#include "platform/device.h"

namespace lz {
namespace {

using nlohmann::json;
using Kind = YamlNode::Kind;

std::string DidYouMean(std::string_view text, std::span<const std::string_view> names) {
  const std::string_view near = NearestName(text, names);
  return near.empty() ? "" : "did you mean " + std::string(near) + "?";
}

// A value and the row that it must fit, so that errors have the same fields everywhere.
struct Reader {
  const PolicySource& source;
  const PolicyKey& key;

  Status Wrong(const YamlNode& node, std::string fix = {}) const {
    return source.Error(node, key.name, WantedText(key), std::move(fix));
  }

  Result<json> Bool(const YamlNode& node) const {
    if (node.kind == Kind::kScalar && !node.quoted) {
      if (node.text == "true") return json(true);
      if (node.text == "false") return json(false);
    }
    return Wrong(node, node.kind == Kind::kScalar ? "write true or false, without quotes" : "");
  }

  Result<json> Int(const YamlNode& node) const {
    if (node.kind != Kind::kScalar) return Wrong(node);
    const std::optional<int64_t> value = ParseInteger(node.text);
    if (node.quoted && value) return Wrong(node, "remove the quotes");
    if (!value || double(*value) < key.min || double(*value) > key.max) return Wrong(node);
    return json(*value);
  }

  Result<json> Float(const YamlNode& node) const {
    if (node.kind != Kind::kScalar) return Wrong(node);
    double value = 0;
    const char* end = node.text.data() + node.text.size();
    const auto [rest, error] = std::from_chars(node.text.data(), end, value);
    if (error != std::errc() || rest != end || !std::isfinite(value)) return Wrong(node);
    if (node.quoted) return Wrong(node, "remove the quotes");
    if (value < key.min || value > key.max) return Wrong(node);
    return json(value == 0 ? 0.0 : value);  // no negative zero
  }

  Result<json> Text(const YamlNode& node) const {
    if (node.kind != Kind::kScalar || node.text.empty()) return Wrong(node);
    if (node.text.find('\0') != std::string::npos) return Wrong(node);
    return json(node.text);
  }

  Result<json> Path(const YamlNode& node) const {
    auto text = Text(node);
    if (text.ok()) *text = WithHome(node.text);
    return text;
  }

  Result<json> Optional(const YamlNode& node) const {
    return node.kind == Kind::kScalar && node.text.empty() ? Result<json>(json("")) : Text(node);
  }

  // "9464" and "127.0.0.1:9464", "[::1]:9464", "localhost:0".
  Result<json> Address(const YamlNode& node) const {
    auto text = Optional(node);
    if (!text.ok() || node.text.empty()) return text;
    const size_t colon = node.text.rfind(':');
    const std::optional<int64_t> port = ParseInteger(std::string_view(node.text).substr(colon + 1));  // npos + 1 = 0
    if (colon == 0 || !port || *port < 0 || *port > 65535) return Wrong(node);
    return text;
  }

  Result<json> Choice(const YamlNode& node) const {
    if (node.kind == Kind::kScalar && ChoiceIndex(key.choices, node.text) >= 0) return json(node.text);
    std::vector<std::string_view> names;
    for (int64_t i = 0; !ChoiceName(key.choices, i).empty(); ++i) names.push_back(ChoiceName(key.choices, i));
    return Wrong(node, node.kind == Kind::kScalar ? DidYouMean(node.text, names) : "");
  }

  Result<json> Name(const YamlNode& node) const {
    if (node.kind != Kind::kScalar || !IsName(node.text, false)) return Wrong(node);
    return json(node.text);
  }

  Result<json> Source(const YamlNode& node) const {
    if (node.kind != Kind::kScalar || !IsName(node.text, true)) return Wrong(node);
    if (node.text.find('.') != std::string::npos) {
      return Wrong(node, "a source is a library's name, without dots; for single kernels use rules or locks");
    }
    return json(node.text);
  }

  // In lower case, so that one key has one spelling.
  Result<json> PublicKey(const YamlNode& node) const {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const bool digits = node.text.find_first_not_of(kDigits) == std::string::npos;
    if (node.kind != Kind::kScalar || node.text.size() != 64 || !digits) {
      return Wrong(node, "`layerzero sign --new-key FILE` prints the public key");
    }
    return json(node.text);
  }

  template <class Element>
  Result<json> List(const YamlNode& node, Element element) const {
    json values = json::array();
    if (node.kind == Kind::kNull) return values;
    if (node.kind != Kind::kList) return Wrong(node, node.kind == Kind::kScalar ? "write it as a list: [...]" : "");
    std::vector<std::pair<std::string, int>> seen;
    for (const YamlNode& item : node.items) {
      Result<json> value = element(item);
      if (!value.ok()) return value.TakeStatus();
      seen.emplace_back(Dump(*value), item.line);
      values.push_back(std::move(*value));
    }
    std::stable_sort(seen.begin(), seen.end());
    for (size_t i = 1; i < seen.size(); ++i) {
      if (seen[i].first != seen[i - 1].first) continue;
      return source.Error(seen[i].second, key.name, "each entry once", seen[i].first + " twice", "remove one of them");
    }
    return values;
  }

  Result<json> Locks(const YamlNode& node) const {
    json values = json::object();
    if (node.kind == Kind::kNull) return values;
    if (node.kind != Kind::kMap) return Wrong(node);
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const YamlNode& name = node.keys[i];
      const YamlNode& kernel = node.items[i];
      if (!IsName(name.text, false)) return source.Error(name, key.name, "the id of an operation, an alias or a group");
      const bool unlock = kernel.kind == Kind::kNull;
      if (!unlock && (kernel.kind != Kind::kScalar || !IsName(kernel.text, false))) {
        return source.Error(kernel, "locks." + name.text, "a kernel id, or null to unlock",
                            "an id has no * or ?; use a rule with allowlist for several kernels");
      }
      values[name.text] = unlock ? json() : json(kernel.text);
    }
    return values;
  }

  Result<json> SmRanges(const YamlNode& node) const {
    if (node.kind != Kind::kMap || node.keys.empty()) return Wrong(node);
    json values = json::object();
    std::vector<std::pair<SmRange, int>> ranges;
    for (size_t i = 0; i < node.keys.size(); ++i) {
      std::optional<SmRange> range = ParseSmRange(node.keys[i].text);
      if (!range) return source.Error(node.keys[i], key.name, "a compute capability or a range, as 89 or 80-88");
      Result<json> generation = Generation(node.items[i]);
      if (!generation.ok()) return generation.TakeStatus();
      ranges.emplace_back(*range, node.keys[i].line);
      const std::string first = std::to_string(range->first);
      values[range->first == range->last ? first : first + "-" + std::to_string(range->last)] = std::move(*generation);
    }
    std::sort(ranges.begin(), ranges.end(), [](auto& a, auto& b) { return a.first.first < b.first.first; });
    for (size_t i = 1; i < ranges.size(); ++i) {
      if (ranges[i].first.first > ranges[i - 1].first.last) continue;
      return source.Error(ranges[i].second, key.name, "ranges that do not overlap",
                          std::to_string(ranges[i].first.first) + " in two of them");
    }
    return values;
  }

  Result<json> Generation(const YamlNode& node) const {
    if (node.kind == Kind::kScalar) {
      if (std::find(kGpuGenerations.begin(), kGpuGenerations.end(), node.text) != kGpuGenerations.end()) {
        return json(node.text);
      }
    }
    std::string wanted = "a generation:";
    for (std::string_view name : kGpuGenerations) wanted.append(" ").append(name);
    return source.Error(node, key.name, wanted,
                        node.kind == Kind::kScalar ? DidYouMean(node.text, kGpuGenerations) : "");
  }

  // "subprocess" is {"default": "subprocess"}; a map without "default" gets the key's.
  Result<json> Modes(const YamlNode& node) const {
    json values = DefaultValue(key);
    if (node.kind == Kind::kNull) return values;
    if (node.kind != Kind::kMap) {
      Result<json> mode = Choice(node);
      if (!mode.ok()) return mode;
      values["default"] = std::move(*mode);
      return values;
    }
    for (size_t i = 0; i < node.keys.size(); ++i) {
      Result<json> name = Source(node.keys[i]);
      if (!name.ok()) return name;
      Result<json> mode = Choice(node.items[i]);
      if (!mode.ok()) return mode;
      values[node.keys[i].text] = std::move(*mode);
    }
    return values;
  }

  Result<json> Texts(const YamlNode& node) const {  // a text may come twice
    json values = json::array();
    if (node.kind == Kind::kNull) return values;
    if (node.kind != Kind::kList) return source.Error(node, key.name, "a list of texts", "write it as a list: [...]");
    for (const YamlNode& item : node.items) {
      Result<json> text = Text(item);
      if (!text.ok()) return text;
      values.push_back(std::move(*text));
    }
    return values;
  }

  Result<json> Container(const YamlNode& node) const {
    constexpr const char* kWanted = "a map with image, and arguments, gpu_passthrough or ipc";
    if (node.kind != Kind::kMap) return source.Error(node, key.name, kWanted);
    json value = {{"arguments", json::array()}, {"gpu_passthrough", false}, {"image", ""}, {"ipc", ""}};
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const std::string& name = node.keys[i].text;
      const YamlNode& item = node.items[i];
      Result<json> read = name == "arguments"         ? Texts(item)
                          : name == "gpu_passthrough" ? Bool(item)
                          : name == "image"           ? Text(item)
                          : name == "ipc"             ? Optional(item)
                                                      : source.Error(node.keys[i], key.name, kWanted);
      if (!read.ok()) return read;
      value[name] = std::move(*read);
    }
    if (value["image"] == "") return source.Error(node, key.name, "an image", "write image: <name>");
    return value;
  }

  Result<json> Containers(const YamlNode& node) const {
    json values = json::object();
    if (node.kind == Kind::kNull) return values;
    if (node.kind != Kind::kMap) return Wrong(node);
    for (size_t i = 0; i < node.keys.size(); ++i) {
      Result<json> name = Source(node.keys[i]);
      if (!name.ok()) return name;
      Result<json> value = Container(node.items[i]);
      if (!value.ok()) return value;
      values[node.keys[i].text] = std::move(*value);
    }
    return values;
  }

  Result<json> Generations(const YamlNode& node) const {
    if (node.kind != Kind::kMap) return Wrong(node);
    json values = json::object();
    for (size_t i = 0; i < node.keys.size(); ++i) {
      Result<json> name = Generation(node.keys[i]);
      if (!name.ok()) return name.TakeStatus();
      Result<json> value = Int(node.items[i]);
      if (!value.ok()) return value.TakeStatus();
      values[node.keys[i].text] = std::move(*value);
    }
    return values;
  }
};

std::string ChoiceText(const PolicyKey& key) {
  std::string text = "one of";
  for (int64_t i = 0; !ChoiceName(key.choices, i).empty(); ++i) {
    text += (i ? ", " : " ") + std::string(ChoiceName(key.choices, i));
  }
  return text;
}

std::string NumberText(double number) {
  return number == std::floor(number) && std::abs(number) < 1e15 ? std::to_string(int64_t(number)) : Dump(json(number));
}

}  // namespace

std::string Dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::optional<int64_t> ParseInteger(std::string_view text) {
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

bool IsName(std::string_view text, bool globs) {
  if (text.empty() || text.size() > 256) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return letter || std::string_view("_-.:/+").find(c) != std::string_view::npos || (globs && (c == '*' || c == '?'));
  });
}

std::optional<SmRange> ParseSmRange(std::string_view text) {
  const size_t dash = text.find('-');
  const std::optional<int64_t> first = ParseInteger(text.substr(0, dash));
  const std::optional<int64_t> last = dash == std::string_view::npos ? first : ParseInteger(text.substr(dash + 1));
  if (!first || !last || *first < 10 || *last > 9999 || *first > *last) return std::nullopt;
  return SmRange{.first = *first, .last = *last};
}

std::string HomeFolder() {
  const char* home = std::getenv("HOME");
  if (home && *home == '/') return home;
  std::array<char, 4096> buffer;
  passwd entry, *found = nullptr;
  const bool known = getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found;
  return known && *found->pw_dir == '/' ? found->pw_dir : "";
}

std::string WithHome(const std::string& path) {
  const std::string home = path.starts_with("~/") ? HomeFolder() : "";
  return home.empty() ? path : home + path.substr(1);
}

std::string WantedText(const PolicyKey& key) {
  const std::string range = " from " + NumberText(key.min) + " to " + NumberText(key.max);
  switch (key.type) {
    case KeyType::kBool: return "true or false";
    case KeyType::kInt: return key.min == key.max ? NumberText(key.min) : "an integer" + range;
    case KeyType::kFloat: return "a number" + range;
    case KeyType::kPath: return "a path";
    case KeyType::kOptionalPath: return "a path, or \"\" for none";
    case KeyType::kAddress: return "an address such as 127.0.0.1:9464, a port, or \"\" for none";
    case KeyType::kChoice: return ChoiceText(key);
    case KeyType::kNames: return "a list of names";
    case KeyType::kSources: return "a list of library names";
    case KeyType::kPublicKeys: return "a list of public keys, 64 hexadecimal digits each";
    case KeyType::kIntList: return "a list of integers" + range;
    case KeyType::kLocks: return "a map from operation to kernel id";
    case KeyType::kRules: return "a list of rules, each with match and actions";
    case KeyType::kSmRanges: return "a map from compute capability (89 or 80-88) to generation";
    case KeyType::kGenerations: return "a map from generation to an integer" + range;
    case KeyType::kModes: return ChoiceText(key) + ", or a map from library (or default) to one of them";
    case KeyType::kContainers: return "a map from library (or default) to {image, arguments, gpu_passthrough, ipc}";
  }
  return {};
}

json DefaultValue(const PolicyKey& key) {
  json value = json::parse(key.value);
  if (key.type == KeyType::kFloat && value.is_number()) value = value.get<double>();
  return value;
}

Result<json> ParseValue(const PolicySource& source, const PolicyKey& key, const YamlNode& node) {
  const Reader read{source, key};
  switch (key.type) {
    case KeyType::kBool: return read.Bool(node);
    case KeyType::kInt: return read.Int(node);
    case KeyType::kFloat: return read.Float(node);
    case KeyType::kPath: return read.Path(node);
    case KeyType::kOptionalPath: return node.text.empty() ? read.Optional(node) : read.Path(node);
    case KeyType::kAddress: return read.Address(node);
    case KeyType::kChoice: return read.Choice(node);
    case KeyType::kNames: return read.List(node, [&](const YamlNode& item) { return read.Name(item); });
    case KeyType::kSources: return read.List(node, [&](const YamlNode& item) { return read.Source(item); });
    case KeyType::kPublicKeys: return read.List(node, [&](const YamlNode& item) { return read.PublicKey(item); });
    case KeyType::kIntList: return read.List(node, [&](const YamlNode& item) { return read.Int(item); });
    case KeyType::kLocks: return read.Locks(node);
    case KeyType::kSmRanges: return read.SmRanges(node);
    case KeyType::kGenerations: return read.Generations(node);
    case KeyType::kModes: return read.Modes(node);
    case KeyType::kContainers: return read.Containers(node);
    case KeyType::kRules: break;
  }
  return source.Error(node, key.name, WantedText(key));
}

}  // namespace lz
