// 1 request: the call, as values that each stage adds to.
//
//   Arguments   what the caller passes
//   BoundCall   ... checked against the contract and completed: axes, output shapes, facts. Stages 2 to 7 read it
//   Request     ... and what dispatch uses and reports: workspace, threads, outcome, fell_back
//
//   Request r(*op);  r.tensors[0] = ...;  r.scalars[0] = ...;
//   LZ_RETURN_IF_ERROR(Bind(r, rules));  // r.axes, r.outputs
//   RefreshFacts(r);                     // r.facts, after its device is known
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "core/facts.h"
#include "core/limits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "health/outcome.h"
#include "layerzero/c_abi.h"
#include "registry/classifier.h"
#include "registry/operation.h"
#include "registry/registry.h"

namespace lz {

inline lz_tensor AbsentTensor() {
  lz_tensor t{};
  t.ndim = -1;
  return t;
}

// One output as the contract computes it. An output that this call does not produce keeps ndim -1.
struct OutputShape {
  int32_t ndim = -1;
  DType dtype = DType::kUnknown;
  int64_t shape[kMaxRank];     // in the contract's order of axes
  int64_t physical[kMaxRank];  // in the order of the caller's layout, which bindings allocate row-major
};

// How the layout of a call without a `layout` argument was found. Impossible layouts are excluded first (by the
// contract's shapes, then with the broadcast arguments), then implausible ones: causal with more queries than keys,
// more heads than the largest usual count. Between two remaining ones it is a guess: by strides (two axes swapped in
// memory were swapped by a transpose to BHSD), by usual head counts, else the contract's order.
enum class LayoutSource : uint8_t { kArgument, kSchema, kMask, kPlausibility, kStrides, kHeadCounts, kAssumed, kCount };
inline constexpr std::array<std::string_view, size_t(LayoutSource::kCount)> kLayoutSourceNames = {
    "argument", "schema", "mask", "plausibility", "strides", "head_counts", "assumed"};
inline constexpr int32_t kDetectLayout = -1;
struct LayoutRules {
  std::vector<int64_t> head_counts{8, 12, 16, 32, 40, 64, 80, 96, 128};
  bool strict = false;          // a guess is refused
  double warn_interval_s = 60;  // between two warnings about one guess at one place
};
extern const LayoutRules kDefaultLayoutRules;

struct Device;

// What the caller sets. tensors: parameters in order, then outputs (needed at dispatch only).
struct Arguments {
  explicit Arguments(const Operation& operation) : op(&operation) {
    for (lz_tensor& t : tensors) t.ndim = -1;
  }
  const Operation* op;
  std::array<lz_tensor, kMaxTensors> tensors{};
  std::array<lz_scalar, kMaxScalars> scalars{};
  uint32_t flags = 0;   // LZ_FLAG_*
  int32_t layout = 0;   // index into op->layout_names(); kDetectLayout: Bind finds it
  int64_t policy = 0;   // 0: the process's policy
  int32_t device = -1;  // index in the engine's devices; -1: that of the tensors
  void* stream = nullptr;
};

// Arguments that Bind has checked. It completes them in place: scalars have the contract's defaults, and tensors with
// another layout are views in the contract's order of axes.
struct BoundCall : Arguments {
  using Arguments::Arguments;

  // Variables of expressions: axes, then integer scalars, then derived facts.
  std::array<int64_t, kMaxAxes + kMaxScalars + kMaxAxes> variables{};
  const int64_t* axes() const { return variables.data(); }
  std::array<OutputShape, kMaxOutputs> outputs{};
  lz_device where{1, 0};
  bool on_cpu() const { return IsCpu(where); }
  const Device* machine = nullptr;        // stage 2: the description of `device`; nullptr: this machine's CPU
  const OperationState* state = nullptr;  // the state that the facts were made for; read it only after KeepCurrent
  LayoutSource layout_source = LayoutSource::kArgument;
  bool layout_guessed = false;       // another layout is plausible too: worth a warning
  DType promoted = DType::kUnknown;  // promoted dtype of tensors that may be cast; kUnknown: they do not mix dtypes
  uint32_t cast_inputs = 0;          // bit i: the dtype of input i differs from `promoted`
  int32_t scalars_given = 0;         // bits of the fact word: values that differ from the contract's defaults
  Facts facts;

  // Shapes and strides of tensors in the contract's order of axes, if the caller's layout differs, and of outputs.
  std::array<std::array<int64_t, 2 * kMaxRank>, kMaxTensors> views;
};

struct Request : BoundCall {
  using BoundCall::BoundCall;

  void* workspace = nullptr;  // nullptr: the engine's arena (CPU only)
  uint64_t workspace_bytes = 0;
  const lz_parallel* parallel = nullptr;  // nullptr: the engine's
  bool fell_back = false;                 // the plan's kernel failed and another one ran
  Outcome outcome = Outcome::kDone;       // of the last kernel, if that failed: an error with kDone is not the kernel's
  bool missed = false;   // no cache had a plan: set by the selection, cleared by the first run that is observed
  uint32_t capture = 0;  // number of the capture that the stream is in; 0: none, or one without a number
};

// Stage 1. `rules`: how to find a layout that was not given. After an error the call must not be used. Allocates only
// for error messages.
Status Bind(BoundCall& call, const LayoutRules& rules);

// Finds the layout of a call without one, from shapes and strides only. Error: a guess in strict mode.
Status DetectLayout(BoundCall& call, const LayoutRules& rules);

// Makes the facts of a bound call, or makes them again after a registration has replaced the operation's state.
void RefreshFacts(BoundCall& call);
// Call it inside a Reclaimer::Guard: until the guard ends, call.state may be read.
inline void KeepCurrent(BoundCall& call) {
  if (call.facts.v[kSlotGeneration] != call.op->state().classifier.generation()) RefreshFacts(call);
}

// Points an output at memory in the caller's layout (row-major `physical` shape).
LZ_OWN void BindOutput(BoundCall& call, size_t output, void* data);

// What rows read besides the call: the facts of its device and of its policy.
struct Surroundings {
  std::span<const int64_t> device = {}, policy = {};
};
// The value of the field or predicate of `row`, the operand that it is compared with, and whether the row holds.
int64_t RowValue(const BoundCall& call, const Row& row, const Surroundings& around);
int64_t RowOperand(const BoundCall& call, const Row& row, const Surroundings& around);
bool RowHolds(const BoundCall& call, const Row& row, const Surroundings& around);

}  // namespace lz
