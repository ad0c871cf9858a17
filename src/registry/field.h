// The fields that rows compare: what of a call, its device or its policy each one is, and where its value is stored.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace lz {

enum class FieldHome : uint8_t { kSlot, kDevice, kPolicy };
enum class FieldType : uint8_t {
  kNumber,
  kBool,
  kDType,
  kChoice,
  kPlatform,
  kGeneration,
  kIsa,
  kInstructionSets,
  kNumerics,  // bits: the operation's numerics classes
  kAllowed,   // bits: the values that another field may have, in its own numbering
};

// The facts of a policy, each with the name of its key in layerzero.yaml: "policy.tp.size". Their values for an
// operation are those of PolicyFactsOf (policy/facts.h).
enum class PolicyField : uint8_t {
  kDeterministic,
  kStrictMode,
  kAllowAdaptation,
  kTpSize,
  kTpInvariant,
  kReductionOrder,
  kKvStrategy,
  kKvLayout,
  kKvDtypes,
  kQuantFormats,
  kForbidNumerics,
  kCount
};
// The first value of each choice forbids nothing; the others of kReductionOrders are those of ReductionOrder.
inline constexpr std::string_view kReductionOrders = "any|canonical|tree|ring";
inline constexpr std::string_view kKvStrategies = "any|contiguous|paged";
inline constexpr std::string_view kKvLayouts = "any|NHD|HND";
inline constexpr uint64_t kMaxTpSize = 65536;

struct PolicyFieldInfo {
  std::string_view name;
  FieldType type;
  std::string_view choices = {};
};
inline constexpr std::array<PolicyFieldInfo, size_t(PolicyField::kCount)> kPolicyFields = {{
    {"deterministic", FieldType::kBool},
    {"strict_mode", FieldType::kBool},
    {"allow_adaptation", FieldType::kBool},
    {"tp.size", FieldType::kNumber},
    {"tp.require_tp_invariant", FieldType::kBool},
    {"tp.reduction_order", FieldType::kChoice, kReductionOrders},
    {"kv_cache.strategy", FieldType::kChoice, kKvStrategies},
    {"kv_cache.layout", FieldType::kAllowed},
    {"kv_cache.dtypes", FieldType::kAllowed},
    {"quant.formats", FieldType::kAllowed},
    {"forbid_numerics", FieldType::kNumerics},
}};
// Names the row's field of the policy, "policy.tp.size".
std::string PolicyFieldName(PolicyField field);

// Where the value of a named field is stored.
struct Field {
  std::string name;
  FieldHome home = FieldHome::kSlot;
  FieldType type = FieldType::kNumber;
  uint8_t slot = 0;               // fact slot, DeviceField or PolicyField
  uint8_t shift = 0;              // position within an exact slot
  int32_t mask = -1;              // applied before the shift; -1: the whole signed slot (a range)
  int16_t param = -1;             // the choice parameter whose value it is, or -1
  std::string_view choices = {};  // kChoice: names of the values, "silu|gelu"

  // A number of the call that is compared as a range, not exactly.
  bool is_range() const { return home == FieldHome::kSlot && mask == -1; }
};

}  // namespace lz
