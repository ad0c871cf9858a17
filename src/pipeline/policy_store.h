// Policies in force: the process's (id 0) and scoped ones, compiled for the operations that they are asked about.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pipeline/policy.h"
#include "registry/registry.h"

namespace lz {

// A policy's rules, resolved for one operation: which of them hold is decided per call.
struct ResolvedRule {
  const Rule* rule;
  std::vector<Row> rows;
};
struct OperationPolicy {
  const Policy* policy = nullptr;
  std::vector<std::vector<ResolvedRule>> rules;  // by variant
  std::vector<std::string> locks;                // by variant; empty: none
  std::array<int64_t, size_t(PolicyField::kCount)> facts{};
};

class Policies {
 public:
  explicit Policies(Registry& registry) : registry_(registry) {}

  // Layers below code: replaced by Reload. `changed` afterwards: the policy epoch has to advance.
  Status Load(std::vector<PolicyLayer> layers);
  // The code layer: keys of `json` are laid over what code set before. Refused as a whole when one key is wrong.
  Status Configure(std::string json);
  // The id of the process's policy with one more layer; equal layers give equal ids.
  Result<int64_t> Scope(int64_t parent, std::string json);

  const Policy& policy(int64_t id);
  // Rules, locks and facts for one operation. Registers the rules' thresholds, so the operation's state may change.
  Result<const OperationPolicy*> For(int64_t id, const Operation& op);

 private:
  struct Compiled {
    Policy policy;
    std::map<const Operation*, std::unique_ptr<OperationPolicy>> operations;
  };
  struct Slot {
    std::vector<PolicyLayer> layers;  // above the process's
    std::string key;
    Compiled* current = nullptr;
  };
  Status Recompile();  // with mutex_ held
  Status CheckRules(const Policy& policy) const;
  Result<std::vector<ResolvedRule>> ResolveRules(const Policy& policy, const Operation& op, std::string_view id);
  std::vector<PolicyLayer> LayersOf(const Slot& slot) const;
  Result<Compiled*> Compile(std::span<const PolicyLayer> layers);

  Registry& registry_;
  std::recursive_mutex mutex_;
  std::vector<PolicyLayer> process_, code_;
  std::deque<Slot> slots_;         // by id
  std::deque<Compiled> compiled_;  // old ones stay: a selection may hold one
};

}  // namespace lz
