// What the files of the descriptor parser share: storage, places in the document, the reader of one kernel.
#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "registry/descriptor.h"
#include "registry/operation.h"

namespace lz {

// Deques, because their elements never move.
struct DescriptorStorage {
  std::deque<std::string> texts;
  std::deque<std::vector<Constraint>> rows;
  std::deque<std::vector<Preference>> preferences;
  std::deque<std::vector<int64_t>> sets;
  std::deque<std::vector<std::string_view>> names;
  std::deque<Requirement> requirements;

  std::string_view Keep(std::string text) { return texts.emplace_back(std::move(text)); }
  std::span<const int64_t> Keep(std::vector<int64_t> set) { return sets.emplace_back(std::move(set)); }
};

// A refusal at `place`, a path such as "ops.attention.causal[0].dtypes".
Status DescriptorError(const std::string& place, std::string wanted, std::string got);

// The operation under which a row is declared.
struct DescribedOperation {
  std::string_view id;  // never an alias
  int causal = -1;      // 1: an alias of causal calls only, 0: of other calls only
  const Operation* op = nullptr;
};

// The operation that takes the calls of `id` with grouped heads: the variant of the same contract that has the
// conditions of `id` without "group == 1". Empty: none.
std::string_view GroupedVariantOf(const Contract& contract, std::string_view id);

// Reads one kernel object for one operation.
class KernelReader {
 public:
  KernelReader(const nlohmann::json& kernel, std::string place, DescribedOperation operation, Platform platform,
               DescriptorStorage* storage)
      : kernel_(kernel), place_(std::move(place)), operation_(operation), platform_(platform), storage_(storage) {}

  Status Read(DescribedKernel* out);
  bool supports_gqa() const { return supports_gqa_; }

  // True for every key that a kernel object may have.
  static bool IsKnownKey(std::string_view key);

 private:
  friend struct KernelKeys;
  using json = nlohmann::json;

  Status Bad(std::string_view key, std::string wanted, const json& got) const;
  Status NoSuchKey(std::string_view key) const;  // the error if the operation has nothing that the key could be about
  bool attention() const { return operation_.id.starts_with("attention."); }

  // Readers of single values. A null or absent value leaves `out` unchanged and sets *given to false.
  Status Integer(std::string_view key, int64_t low, int64_t high, int64_t* out, bool* given) const;
  Status Boolean(std::string_view key, bool* out, bool* given = nullptr) const;
  Status Text(std::string_view key, std::string_view* out) const;
  Status Names(std::string_view key, std::vector<std::string>* out) const;
  bool Has(std::string_view key) const { return kernel_.contains(key); }
  bool IsNull(std::string_view key) const { return Has(key) && kernel_.find(key)->is_null(); }
  bool HasFields(std::initializer_list<std::string_view> names) const;
  std::vector<std::string_view> FieldsNamed(const std::string& name) const;

  Status Identity();
  Status Dtypes();
  Status Layouts();
  Status Sm();
  Status Generation();
  Status Versions();
  Status HeadDims();
  Status Lengths();
  Status Gqa();
  Status Arguments();
  Status Memory();
  Status Behaviour();
  Status Grid();
  Status Tp();
  Status Constraints();
  Status Preferences();
  Status ReadPreference(const json& value, const std::string& place, Preference* out);
  Status ReadConstraint(const json& row, const std::string& place, std::vector<Constraint>* to);
  Status ConstraintValues(const json& row, const std::string& place, Constraint* c);
  Status Operand(const json& value, const std::string& place, const Field* field, int64_t* out) const;
  Status JitKeys();
  Status Requirements();
  Status Unsupported();
  Status DtypeFlags();
  Status QuantFormats(const std::vector<std::string>& formats);
  Status QuantScales();
  Status PackedWeights();
  Status MaskTypes();
  Status KvCache();
  Status Workspace();

  void Row(std::string_view field, Rel rel, int64_t operand, ReasonCode code);
  void LimitRow(std::string_view field, std::string_view fact, ReasonCode code);  // field <= a fact of the device
  void Accept(std::string_view name) { accepts_.push_back(storage_->Keep(std::string(name))); }
  Status SmNumber(std::string_view key, int64_t* out, bool* given) const;
  std::string GridFormula(std::string_view text, int64_t tile_size) const;
  void MaskRow(std::string_view field, int64_t mask, ReasonCode code) { Row(field, Rel::kInMask, mask, code); }
  Status LayoutRow(std::string_view key, const std::vector<std::string>& names, ReasonCode code);

  const json& kernel_;
  std::string place_;
  DescribedOperation operation_;
  Platform platform_;
  DescriptorStorage* storage_;
  DescribedKernel* out_ = nullptr;
  std::vector<Constraint> rows_;
  std::vector<std::string_view> accepts_;
  bool supports_gqa_ = false;
};

Status ReadRequirement(const nlohmann::json& value, const std::string& place, Requirement* out);

}  // namespace lz
