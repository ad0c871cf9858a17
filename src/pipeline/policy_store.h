// Policies in force: the process's (id 0) and scoped ones, compiled for the operations that they are asked about.
//
// An id stands for the process's policy with the words of its scopes laid over it and stays good for ever, so it keeps
// no more than those words. What is compiled from them is shared, found again by content, and dropped when it has not
// been asked for lately: holders keep theirs.
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

#include "pipeline/policy.h"
#include "pipeline/policy_names.h"
#include "registry/registry.h"

namespace lz {

// A policy's rules, resolved for one operation: which of them hold is decided per call.
struct ResolvedRule {
  const Rule* rule;
  std::vector<Row> rows;
};
struct OperationPolicy {
  std::shared_ptr<const Policy> policy;
  std::vector<std::vector<ResolvedRule>> rules;  // by variant
  std::vector<std::string> locks;                // by variant; empty: none
  std::array<int64_t, size_t(PolicyField::kCount)> facts{};
  bool names_checked = false;     // every kernel and library that it names for this operation exists
  uint64_t registry_changes = 0;  // which locks bind depends on the kernels that there are
};

class Policies {
 public:
  static constexpr size_t kMaxScopes = size_t{1} << 20;  // of different words; beyond: an error
  static constexpr size_t kMaxCompiled = 128;            // kept for the next call

  explicit Policies(Registry& registry) : registry_(registry) {}

  // Layers below code: replaced by Reload. `changed` afterwards: the policy epoch has to advance.
  Status Load(std::vector<PolicyLayer> layers);
  // The code layer: keys of `json` are laid over what code set before. Refused as a whole when one key is wrong.
  Status Configure(const std::string& json);
  // The id of the process's policy with one more layer; equal layers give equal ids.
  Result<int64_t> Scope(int64_t parent, std::string json);

  Result<std::shared_ptr<const Policy>> policy(int64_t id);
  // Rules, locks and facts for one operation. Registers the rules' thresholds, so the operation's state may change.
  Result<std::shared_ptr<const OperationPolicy>> For(int64_t id, const Operation& op);

  // Every library is registered now, or is one of `later`: from here on a policy that names another one, or a kernel
  // that is not there, is refused. Before, such names may be of what is still to come.
  void AllNamed(LibraryNames later);

  size_t num_scopes() const;
  size_t num_compiled() const;
  size_t num_layers() const;  // of code

 private:
  struct Compiled {
    std::string key;  // what it was made from
    std::shared_ptr<const Policy> policy;
    std::map<const Operation*, std::shared_ptr<const OperationPolicy>> operations;
  };
  struct Slot {
    int64_t parent;
    std::string json;
    std::weak_ptr<Compiled> compiled;
    uint64_t version;  // of the process's policy that `compiled` was made with
  };
  // All with mutex_ held.
  Result<std::shared_ptr<Compiled>> Of(int64_t id);
  Result<std::shared_ptr<Compiled>> Compile(int64_t id);
  Status Recompile();  // the process's, with a version of its own
  Status CheckNames(const Policy& policy) const;
  Status CheckCondition(const Rule& rule, const RuleCondition& condition) const;
  Result<std::shared_ptr<const OperationPolicy>> Resolve(std::shared_ptr<const Policy> policy, const Operation& op);
  Result<std::vector<ResolvedRule>> ResolveRules(const Policy& policy, const Operation& op, std::string_view id);

  Registry& registry_;
  mutable std::mutex mutex_;
  std::vector<PolicyLayer> process_, code_;
  bool all_named_ = false;
  LibraryNames later_;
  uint64_t version_ = 0;  // of process_ and code_
  uint64_t process_version_ = 0;
  std::deque<Slot> slots_;                                           // by id
  std::map<std::pair<int64_t, std::string_view>, int64_t> slot_of_;  // parent and words
  std::list<std::shared_ptr<Compiled>> compiled_;                    // the last one used first
  std::shared_ptr<Compiled> current_;                                // the process's
};

}  // namespace lz
