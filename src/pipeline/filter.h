// 5 filter: hard rules. Every kernel of the operation is either admissible or keeps all its reasons.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <vector>

#include "core/reason.h"
#include "pipeline/request.h"
#include "platform/device.h"
#include "policy/store.h"

namespace lz {

// A term of a score.
struct Term {
  const char* name;  // "priority", "preferred", "avoided", "measured", "transforms"
  double value;
  const char* source;  // "declared", "policy", "measured", "none"
};
// The transforms of a call's tensors before a kernel takes them, and of its results afterwards. Bit i: input or
// output i.
struct Transforms {
  uint32_t contiguous = 0;  // inputs copied to dense memory in the contract's order of axes
  uint32_t cast = 0;        // inputs converted to the call's promoted dtype, also dense
  uint32_t indices = 0;     // index inputs converted to int32, or to int64, also dense
  uint32_t outputs = 0;     // outputs written dense in the contract's order, then moved to the caller's layout

  uint32_t inputs() const { return contiguous | cast | indices; }  // inputs that a kernel gets as copies
  bool any() const { return (inputs() | outputs) != 0; }
  int count() const { return std::popcount(inputs()) + std::popcount(outputs); }
  DType DTypeAfter(const BoundCall& call, size_t input) const;
  auto operator<=>(const Transforms&) const = default;
};

// Returns the other one of int32 and int64.
constexpr DType OtherIndexDType(DType dtype) { return dtype == DType::kI64 ? DType::kI32 : DType::kI64; }

// What is known about one kernel for one call.
struct Candidate {
  const KernelEntry* kernel = nullptr;
  std::vector<Reason> reasons;                     // empty: admissible
  int32_t priority = 0;                            // the kernel's for this call
  const ResolvedPreference* preference = nullptr;  // where that priority is from; nullptr: its default
  Transforms transforms;                           // admissible after these
  int preferred = 0;                               // position in the policy's preferences, from 1; 0: not preferred
  bool avoided = false;
  std::vector<Term> terms;
  double score = 0;
  double measured_us = 0;  // 0: not measured
  bool admissible() const { return reasons.empty(); }
};

// The variant of the contract for this call: the first whose conditions hold; -1 if none does.
int VariantOf(const BoundCall& call);

// All kernels of `variant`, with reasons. Those of the backends `not_now` are refused for this call. `may_compile`: the
// call may wait until a kernel is compiled, unless it is captured. `only`: this kernel and references. A reason whose
// row is kNoRow is not a rule of the kernel: its field, if any, is the operation's.
inline constexpr uint32_t kNoRow = UINT32_MAX;
inline constexpr uint16_t kNoField = UINT16_MAX;
std::vector<Candidate> Filter(const BoundCall& call, int variant, const Device& device, const OperationPolicy& policy,
                              std::span<const Backend* const> not_now = {}, bool may_compile = false,
                              const KernelEntry* only = nullptr);

// The kind of this call for a kernel that is compiled at its first call of each kind.
JitKind JitKindOf(const BoundCall& call, const KernelEntry& kernel, const Surroundings& around);
// True for a kernel that is refused only because it is not compiled yet.
bool LacksCompilationAlone(const Candidate& candidate);
// True if all rows hold for this call.
bool HoldForCall(const BoundCall& call, const std::vector<Row>& rows, const Device& device,
                 const OperationPolicy& policy);

// The lock that applies to this call: a rule's lock comes before the policy's. Empty: none.
std::string LockOf(const BoundCall& call, int variant, const Device& device, const OperationPolicy& policy);

}  // namespace lz
