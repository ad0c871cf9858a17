// Every key of layerzero.yaml as one row of a table: its type, range, default, one sentence. The parser, the default
// file, the JSON schema and the guide's table are made from it.
//   const PolicyKey* key = FindPolicyKey("cache.max_size");
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lz {

enum class KeyType : uint8_t {
  kBool,
  kInt,
  kFloat,
  kPath,          // not part of the policy's hash
  kOptionalPath,  // "": none; not part of the hash either
  kAddress,       // "host:port", "port" or "": none; the same
  kChoice,        // one of PolicyKey::choices
  kNames,         // a list of names, which Policies checks
  kSources,       // library names, globs allowed
  kPublicKeys,    // Ed25519 keys, 64 hexadecimal digits each
  kIntList,
  kLocks,  // operation -> kernel id, null unlocks
  kRules,
  kSmRanges,     // "80-88" -> generation
  kGenerations,  // generation -> integer
  kModes,        // one of PolicyKey::choices, or library -> one of them; kept as a map whose "default" is the rest
  kContainers,   // library -> {image, arguments, gpu_passthrough, ipc}
};

struct PolicyKey {
  std::string_view name;  // "cache.max_size"
  KeyType type;
  std::string_view value;     // the default, as JSON
  bool process_wide = false;  // refused in a scope, because it cannot differ between calls
  double min = 0;             // kInt, kFloat, elements of kIntList, values of maps
  double max = 0;
  std::string_view choices = {};  // kChoice and kModes: "any|NHD|HND"
  std::string_view doc;
};

// False for paths and addresses: they change no choice.
constexpr bool IsHashed(KeyType type) {
  return type != KeyType::kPath && type != KeyType::kOptionalPath && type != KeyType::kAddress;
}

std::span<const PolicyKey> PolicyKeys();
const PolicyKey* FindPolicyKey(std::string_view name);  // null: unknown
// Keys and sections that are planned (docs/roadmap.md). They are refused because no part of this version reads them.
std::span<const std::string_view> PolicyRoadmap();
bool IsOnPolicyRoadmap(std::string_view name);  // true for "jit.manifest_path" as well as "jit"
inline constexpr std::string_view kNotInThisVersion = "not supported in this version, see docs/roadmap.md";
bool IsPolicySection(std::string_view name);

// Describes valid values: "an integer from 1 to 100".
std::string WantedText(const PolicyKey& key);
// The entry of `names` that `text` was probably meant to be; empty: none is close.
std::string_view NearestName(std::string_view text, std::span<const std::string_view> names);
// How to write the key closest to `name` (in `section`, empty at the top level); empty: none is close.
std::string NearestKeyFix(std::string_view section, std::string_view name);

// policies/default.yaml, schemas/policy.schema.json and the table of docs/guide/policy.md, as text.
std::string RenderDefaultPolicy();
std::string RenderPolicySchema();
std::string RenderPolicyTable();

}  // namespace lz
