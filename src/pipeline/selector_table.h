// A dispatch table in force: the kernel that it has for a call, looked up on a miss before scoring. A hit in the plan
// cache never comes here.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pipeline/request.h"
#include "policy/store.h"
#include "table/file.h"

namespace lz {

// What a table was for one selection.
enum class TableUse : uint8_t {
  kNone,         // there is no table
  kUsed,         // its kernel was taken
  kOutside,      // it has no entry for the call: PLAN_BUCKET_MISS
  kOtherPolicy,  // it was made under other settings than this call's
  kStale,        // kernels were registered or removed since it was loaded, or the call is on another device
  kRefused,      // its kernel does not take the call, or may not run now: the candidate has the reasons
  kCount
};
inline constexpr std::array<std::string_view, size_t(TableUse::kCount)> kTableUseNames = {
    "none", "used", "outside", "other policy", "stale", "kernel refused"};

// The trees of one operation, resolved against its fields. Its conditions are thresholds of the classes as long as it
// exists, so that a class of calls has one entry.
class OperationTable {
 public:
  // What the entry of a call says.
  struct Found {
    const KernelEntry* kernel = nullptr;  // nullptr: no entry, or no such kernel
    double us = 0;
    uint32_t plan = 0;
  };
  // Call it inside a Reclaimer::Guard, with facts that were made after this was.
  Found Find(const BoundCall& call, int variant) const;

 private:
  friend class TableInForce;
  struct Variable {
    Row row;
    bool is_predicate;
  };
  struct OfVariant {
    const table::Tree* tree = nullptr;
    std::vector<Variable> variables;
    std::map<uint32_t, const KernelEntry*> kernels;  // by string
  };
  std::shared_ptr<const table::File> file_;
  std::vector<OfVariant> variants_;
  std::vector<Registry::Thresholds> held_;
  Status problem_;  // a variable that this build does not have
};

class TableInForce {
 public:
  // `is_of(device)`: whether the table was made for this device and the kernels that are registered now.
  using IsOf = std::function<bool(const Device& device)>;
  TableInForce(std::shared_ptr<const table::File> file, uint64_t selection_hash, int64_t tp_size, bool tp_invariant,
               IsOf is_of)
      : file_(std::move(file)),
        selection_hash_(selection_hash),
        tp_size_(tp_size),
        tp_invariant_(tp_invariant),
        is_of_(std::move(is_of)) {}

  const table::File& file() const { return *file_; }
  // The part for an operation; made at its first miss. May split classes further: facts have to be made again.
  std::shared_ptr<const OperationTable> For(Registry& registry, const Operation& op);
  // kUsed: the table may decide for calls of this policy on this device.
  TableUse UseFor(const Registry& registry, const Policy& policy, const Device& device, int32_t index);
  void Forget();  // devices are compared again
  void Count(TableUse use) { counts_[size_t(use)].fetch_add(1, std::memory_order_relaxed); }
  uint64_t count(TableUse use) const { return counts_[size_t(use)].load(std::memory_order_relaxed); }
  Status problem() const;  // the first operation whose part could not be made

 private:
  std::shared_ptr<const table::File> file_;
  uint64_t selection_hash_;
  int64_t tp_size_;
  bool tp_invariant_;
  IsOf is_of_;
  mutable std::mutex mutex_;
  std::map<const Operation*, std::shared_ptr<const OperationTable>> parts_;
  std::map<int32_t, bool> devices_;
  uint64_t changes_ = 0;  // of the registry, when parts_ and devices_ were made
  std::array<std::atomic<uint64_t>, size_t(TableUse::kCount)> counts_{};
};

// "s_q % 16 == 0" of a condition that no field represents.
std::string PredicateName(const Operation& op, const Predicate& predicate);
// The condition of that name; false: it is not one. The views refer to `name` and `set`.
bool PredicateOf(std::string_view name, Constraint* condition, std::vector<int64_t>* set);

}  // namespace lz
