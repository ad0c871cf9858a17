// 1 request: what is asked. The door fills `op`, tensors and scalars; Bind checks them against the contract, resolves
// defaults, and gives axes, output shapes and the facts of the call.
//
//   Request r(*op);  r.tensors[0] = ...;  r.scalars[0] = ...;
//   LZ_RETURN_IF_ERROR(Bind(r));            // r.axes, r.outputs, r.facts
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "core/facts.h"
#include "core/limits.h"
#include "core/status.h"
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

// One output as the contract computes it. An output that this call does not have keeps ndim -1.
struct OutputShape {
  int32_t ndim = -1;
  DType dtype = DType::kUnknown;
  int64_t shape[kMaxRank];     // in the contract's order of axes
  int64_t physical[kMaxRank];  // in the order of the caller's layout: what a door allocates, row-major
};

// Which reading of the axes a call means that does not say so. Readings that are impossible go first (by the contract's
// shapes, then with the broadcast arguments), then those that are implausible: causal with more queries than keys, more
// heads than the largest usual count. Between two that are left it is a guess: by strides (two axes swapped in memory
// were swapped by a transpose to BHSD), by usual head counts, else the contract's order.
enum class LayoutSource : uint8_t { kArgument, kSchema, kMask, kPlausibility, kStrides, kHeadCounts, kAssumed, kCount };
inline constexpr std::array<std::string_view, size_t(LayoutSource::kCount)> kLayoutSourceNames = {
    "argument", "schema", "mask", "plausibility", "strides", "head_counts", "assumed"};
inline constexpr int32_t kDetectLayout = -1;
struct LayoutRules {
  std::vector<int64_t> head_counts{8, 12, 16, 32, 40, 64, 80, 96, 128};
  bool strict = false;          // a guess is refused
  double warn_interval_s = 60;  // between two warnings of one place about one guess
};

struct Request {
  explicit Request(const Operation& operation) : op(&operation) {
    for (lz_tensor& t : tensors) t.ndim = -1;
  }

  // Filled by the caller. tensors: parameters in order, then outputs (needed at dispatch only).
  const Operation* op;
  std::array<lz_tensor, kMaxTensors> tensors{};
  std::array<lz_scalar, kMaxScalars> scalars{};
  uint32_t flags = 0;   // LZ_FLAG_*
  int32_t layout = 0;   // index into op->layout_names(); kDetectLayout: Bind finds it
  int64_t policy = 0;   // 0: the process's
  int32_t device = -1;  // index in the engine's devices; -1: the tensors'
  void* stream = nullptr;
  void* workspace = nullptr;  // nullptr: the engine's arena (CPU only)
  uint64_t workspace_bytes = 0;
  const lz_parallel* parallel = nullptr;  // nullptr: the engine's

  // How a layout that was not given is to be found; see DetectLayout.
  const LayoutRules* layout_rules = nullptr;  // nullptr: the defaults

  // Filled by Bind. Variables of expressions: axes, then integer scalars, then derived facts.
  std::array<int64_t, kMaxAxes + kMaxScalars + kMaxAxes> variables{};
  const int64_t* axes() const { return variables.data(); }
  std::array<OutputShape, kMaxOutputs> outputs{};
  lz_device where{1, 0};
  const OperationState* state = nullptr;  // that the facts were made for; to be read after KeepCurrent alone
  LayoutSource layout_source = LayoutSource::kArgument;
  bool layout_guessed = false;       // another reading is plausible too: worth a warning
  DType promoted = DType::kUnknown;  // of tensors that mix dtypes and may be cast; kUnknown: none do
  uint32_t cast_inputs = 0;          // bit i: input i has another dtype than `promoted`
  int32_t scalars_given = 0;         // bits of the fact word: what differs from the contract's defaults
  Facts facts;

  // Filled by dispatch.
  bool fell_back = false;  // the plan's kernel failed and its fallback answered

  // Views of the tensors in the contract's order of axes, where the caller's layout differs.
  std::array<std::array<int64_t, 2 * kMaxRank>, kMaxTensors> views;
};

// Stage 1. On an error nothing of the request may be used. Allocates only to say what is wrong.
Status Bind(Request& request);

// Finds the layout of a request that does not give one, from shapes and strides alone. An error: strict, and a guess.
Status DetectLayout(Request& request);

// Makes the facts of a bound request anew, after a registration has replaced the operation's state.
void RefreshFacts(Request& request);
// Inside a Reclaimer::Guard: from here to the guard's end request.state may be read.
inline void KeepCurrent(Request& request) {
  if (request.facts.v[kSlotGeneration] != request.op->state().classifier.generation()) RefreshFacts(request);
}

// Points an output at memory that holds it in the caller's layout (row-major `physical` shape).
void BindOutput(Request& request, size_t output, void* data);

// The value of a field or predicate rule, for checks and reasons: what `row` is about.
int64_t RowValue(const Request& request, const Row& row, std::span<const int64_t> device_facts,
                 std::span<const int64_t> policy_facts);

}  // namespace lz
