// Policies in force: the process's (id 0) and scoped ones, compiled for the operations for which they are requested.
//
// An id identifies the process's policy overlaid with the settings of its scopes. It is valid for the life of the
// process, so only those settings are kept for it. The policies compiled from them are shared, found by content, and
// dropped when they have not been used lately; whoever holds one keeps it alive.
#pragma once

#include <array>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/facts.h"
#include "policy/names.h"
#include "policy/policy.h"
#include "registry/registry.h"

namespace lz {

// A policy's rules, resolved for one operation; each call decides which of them apply.
struct ResolvedRule {
  const Rule* rule;
  Registry::Thresholds rows;
};
struct OperationPolicy {
  std::shared_ptr<const Policy> policy;
  std::vector<std::vector<ResolvedRule>> rules;  // by variant
  std::vector<std::string> locks;                // by variant; empty: none
  PolicyFacts facts{};
  bool names_checked = false;     // every kernel and library that it names for this operation exists
  uint64_t registry_changes = 0;  // the locks that bind depend on the registered kernels
};

class Policies {
 public:
  static constexpr size_t kMaxScopes = size_t{1} << 20;  // with different settings; more are an error
  static constexpr size_t kMaxCompiled = 128;            // compiled policies that are kept

  explicit Policies(Registry& registry) : registry_(registry) {}

  // Sets the layers below code, which Reload replaces. `changed` afterwards: the policy epoch has to advance.
  Status Load(std::vector<PolicyLayer> layers);
  // The code layer: overlays keys of `json` on what code set before. Refused as a whole if one key is wrong.
  Status Configure(const std::string& json);
  // Returns the id of the process's policy with one more layer; equal layers have equal ids.
  Result<int64_t> Scope(int64_t parent, std::string json);

  Result<std::shared_ptr<const Policy>> policy(int64_t id);
  // Rules, locks and facts for one operation. Registers the rules' thresholds, so the operation's state may change;
  // they are taken back when nothing holds the result any more.
  Result<std::shared_ptr<const OperationPolicy>> For(int64_t id, const Operation& op);

  // Every library is registered now, or is one of `later`: from now on a policy that names another library, or an
  // unknown kernel, is refused. Before that, such names may belong to a library that is registered later.
  void AllNamed(LibraryNames later);

  size_t num_scopes() const;
  size_t num_compiled() const;
  size_t num_layers() const;  // layers of code

 private:
  struct Compiled {
    std::string key;  // the settings it was compiled from
    std::shared_ptr<const Policy> policy;
    std::map<const Operation*, std::shared_ptr<const OperationPolicy>> operations;
  };
  struct Slot {
    int64_t parent;
    std::string json;
    std::weak_ptr<Compiled> compiled;
    uint64_t version;  // version of the process's policy that `compiled` was made with
  };
  // mutex_ must be held for all of these.
  Result<std::shared_ptr<Compiled>> Of(int64_t id);
  Result<std::shared_ptr<Compiled>> Compile(int64_t id);
  Status Recompile();  // the process's policy, with a new version
  Status CheckNames(const Policy& policy) const;
  Status CheckCondition(const Rule& rule, const RuleCondition& condition) const;
  Result<std::shared_ptr<const OperationPolicy>> Resolve(std::shared_ptr<const Policy> policy, const Operation& op);
  Result<std::vector<ResolvedRule>> ResolveRules(const Policy& policy, const Operation& op, std::string_view id);

  Registry& registry_;
  mutable std::mutex mutex_;
  std::vector<PolicyLayer> process_, code_;
  bool all_named_ = false;
  LibraryNames later_;
  uint64_t version_ = 0;  // version of process_ and code_
  uint64_t process_version_ = 0;
  std::deque<Slot> slots_;                                           // by id
  std::map<std::pair<int64_t, std::string_view>, int64_t> slot_of_;  // by parent and settings
  std::list<std::shared_ptr<Compiled>> compiled_;                    // most recently used first
  std::shared_ptr<Compiled> current_;                                // the process's policy
};

}  // namespace lz
