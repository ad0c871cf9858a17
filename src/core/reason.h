// Why a kernel was refused, as data: 24 bytes, no text. Text is made only when somebody reads it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lz {

enum class Rel : uint8_t {
  kEq,
  kNe,
  kGe,
  kGt,
  kLe,
  kLt,
  kMultipleOf,  // value % operand == 0
  kInMask,      // bit `value` of the operand is set (dtypes, choices, booleans)
  kInSet,       // value is one of the row's `set`
  kHasBits,     // (value & operand) == operand (instruction sets)
  kLacksBits,   // (value & operand) == 0 (what a policy forbids)
};
constexpr std::string_view RelText(Rel rel) {
  constexpr std::array<std::string_view, 11> kText = {"==",          "!=", ">=", ">",   "<=",     "<",
                                                      "multiple of", "in", "in", "has", "without"};
  return kText[size_t(rel)];
}

// Dashboards and databases rely on the names; the numbers never leave the process. A code is added together with the
// code that raises it (scripts/check_promises.py): those that are planned are in docs/roadmap.md.
enum class ReasonCode : uint8_t {
  kAuto,  // in a row: derive the code from field and relation
  kPlatformMismatch,
  kDeviceCapabilityUnsupported,
  kSmTooOld,
  kSmTooNew,
  kGpuGenerationUnsupported,
  kTensorCoreGenUnsupported,
  kInstructionSetMismatch,
  kDriverVersionUnsupported,
  kDtypeUnsupported,
  kHeadDimInvalid,
  kHeadDimAlignment,
  kHeadDimTooLarge,
  kSeqTooLong,
  kGqaUnsupported,
  kGqaHeadsMismatch,
  kAttnMaskUnsupported,
  kStrideLastDim,
  kNotContiguous,
  kCudaGraphUnsafe,
  kNonDeterministic,
  kNotInstalled,
  kBackendImportFailed,
  kTokenizerIdMismatch,
  kVocabHashMismatch,
  kMergesHashMismatch,
  kNormalizerMismatch,
  kAddedTokensMismatch,
  kSpecialTokensMismatch,
  kPackedWeightsRequired,
  kKvCacheLayoutMismatch,
  kKvCacheDtypeMismatch,
  kKvStrategyUnsupported,
  kCapabilitiesSchemaMismatch,
  kMemoryHeadroomExceeded,
  kConstraintFailed,
  kCudaBlockLimitExceeded,
  kCudaGridDimExceeded,
  kQuantFormatUnsupported,
  kLayoutUnsupported,
  kDropoutUnsupported,
  kScaleUnsupported,
  kAlignment,
  kGradUnsupported,
  kPretokenizerMismatch,
  kQuantScalesRequired,
  kQuantGranularity,
  kPolicyDenied,
  kTransformNotAllowed,
  kOffsetsUnsupported,
  kArgumentUnsupported,  // an optional argument was given that the kernel does not take
  kShapeUnsupported,     // an axis without a code of its own is outside the kernel's range
  kNotBuilt,             // the library was built without code for this GPU
  kJitDisabled,          // the kernel is compiled off the request path, and is not ready for this call
  kTpInvarianceRequired,
  kTpSizeExceeded,
  kReductionOrderMismatch,
  kBackendError,  // it keeps failing: its breaker, or its backend's, is open
  kQuarantined,   // known to be wrong, to crash or to lose the device for such calls
  kCount
};

struct ReasonInfo {
  std::string_view name;
  std::string_view cause;
  std::string_view fix;
};
const ReasonInfo& Info(ReasonCode code);               // from the table in reason.cpp
ReasonCode ReasonCodeFromName(std::string_view name);  // kAuto if the name is unknown

// One refusal. `field` indexes the operation's fields; `wanted` and `got` are values of that field.
struct Reason {
  ReasonCode code;
  Rel rel;
  uint16_t field;
  uint32_t row;  // index of the kernel's row (its `set`, if kInSet)
  int64_t wanted;
  int64_t got;
};
static_assert(sizeof(Reason) == 24);

}  // namespace lz
