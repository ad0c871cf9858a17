// What an operation is: one constexpr Contract per file under ops/. The Python function and its stub, the torch
// schema and fake, the docs page, the support-matrix row, the cache key and the meaning of conformance cases are
// derived from it.
//
// Shapes are text, parsed once at start-up:
//   "b, s_q, h_q, d"      four axes; a name is bound at its first appearance and must agree afterwards
//   "..., hidden"         any number of leading axes (a contract has one "..." only: it must agree everywhere)
//   "n, hidden / 2"       integer expressions of axes: + - * / and parentheses (checked, or computed for outputs)
//   "n, hidden / dtype[1, 2]"   a number selected by the value of a choice parameter
//   "_"                   any size, no name; "*" alone: any rank (the contract's canonicalize checks it)
// A broadcast parameter (attention masks) may lack leading axes, and each axis may be 1.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/dtype.h"
#include "core/reason.h"
#include "core/status.h"

namespace lz {

enum class ParamKind : uint8_t { kTensor, kInt, kFloat, kBool, kChoice };

struct Param {
  std::string_view name;
  ParamKind kind = ParamKind::kTensor;
  std::string_view doc;   // one phrase: meaning, unit
  bool optional = false;  // may be omitted or None (a scalar with a default is never absent)
  bool keyword_only = false;
  // For tensors.
  std::string_view shape = {};
  DTypeMask dtypes = 0;
  std::string_view same_dtype_as = {};  // empty: its own
  bool broadcast = false;
  bool layout = false;    // its axes are permuted by the `layout` argument
  bool mutated = false;   // the operation writes into it, in place
  bool promotes = false;  // may differ from same_dtype_as: a plan may cast both to the promoted dtype
  // The dtype is int32 or int64. A kernel that has no rule about "<name>.dtype" reads int32: a plan converts int64
  // for it.
  bool index = false;
  // The number of axes of a call with one batch axis, which comes first. Bindings take any number of batch axes,
  // including none, and flatten them into one. 0: the axes are those of the shape.
  int8_t batched_rank = 0;
  // For scalars.
  int64_t int_default = 0;
  double float_default = 0;
  bool has_default = false;
  std::string_view choices = {};  // "silu|gelu|gelu_tanh": value i is the i-th
  // The axis, the last one of its tensors, whose size this is. Bindings also take the sizes of several axes and fold
  // them into one.
  std::string_view folds = {};
};

constexpr Param TensorParam(std::string_view name, std::string_view shape, DTypeMask dtypes, std::string_view doc) {
  return {.name = name, .doc = doc, .shape = shape, .dtypes = dtypes};
}
constexpr Param OptionalTensor(std::string_view name, std::string_view shape, DTypeMask dtypes, std::string_view doc) {
  return {.name = name, .doc = doc, .optional = true, .shape = shape, .dtypes = dtypes};
}
constexpr Param IndexTensor(std::string_view name, std::string_view shape, std::string_view doc) {
  return {.name = name, .doc = doc, .shape = shape, .dtypes = kIndices, .index = true};
}
constexpr Param OptionalIndex(std::string_view name, std::string_view shape, std::string_view doc) {
  return {.name = name, .doc = doc, .optional = true, .shape = shape, .dtypes = kIndices, .index = true};
}
constexpr Param Float(std::string_view name, double value, std::string_view doc) {
  return {.name = name, .kind = ParamKind::kFloat, .doc = doc, .float_default = value, .has_default = true};
}
constexpr Param OptionalFloat(std::string_view name, std::string_view doc) {
  return {.name = name, .kind = ParamKind::kFloat, .doc = doc, .optional = true};
}
constexpr Param Int(std::string_view name, int64_t value, std::string_view doc) {
  return {.name = name, .kind = ParamKind::kInt, .doc = doc, .int_default = value, .has_default = true};
}
constexpr Param RequiredInt(std::string_view name, std::string_view doc) {
  return {.name = name, .kind = ParamKind::kInt, .doc = doc};
}
constexpr Param RequiredFloat(std::string_view name, std::string_view doc) {
  return {.name = name, .kind = ParamKind::kFloat, .doc = doc};
}
constexpr Param OptionalInt(std::string_view name, std::string_view doc) {
  return {.name = name, .kind = ParamKind::kInt, .doc = doc, .optional = true};
}
constexpr Param Bool(std::string_view name, bool value, std::string_view doc) {
  return {.name = name, .kind = ParamKind::kBool, .doc = doc, .int_default = value, .has_default = true};
}
constexpr Param OptionalBool(std::string_view name, std::string_view doc) {
  return {.name = name, .kind = ParamKind::kBool, .doc = doc, .optional = true};
}
constexpr Param Choice(std::string_view name, std::string_view choices, int64_t value, std::string_view doc) {
  return {.name = name,
          .kind = ParamKind::kChoice,
          .doc = doc,
          .int_default = value,
          .has_default = true,
          .choices = choices};
}
constexpr Param RequiredChoice(std::string_view name, std::string_view choices, std::string_view doc) {
  return {.name = name, .kind = ParamKind::kChoice, .doc = doc, .choices = choices};
}
constexpr Param KeywordOnly(Param p) {
  p.keyword_only = true;
  return p;
}
constexpr Param WithLayout(Param p) {
  p.layout = true;
  return p;
}
constexpr Param Folds(Param p, std::string_view axis) {
  p.folds = axis;
  return p;
}
constexpr Param AnyBatch(Param p, int8_t batched_rank) {
  p.batched_rank = batched_rank;
  return p;
}
constexpr Param Broadcast(Param p) {
  p.broadcast = true;
  return p;
}
constexpr Param SameDType(Param p, std::string_view other) {
  p.same_dtype_as = other;
  return p;
}
constexpr Param Mutated(Param p) {
  p.mutated = true;
  return p;
}
constexpr Param Promotes(Param p) {
  p.promotes = true;
  return p;
}

// The name at `index` in "a|b|c", empty past the last one; and the index of a name, or -1.
constexpr std::string_view ChoiceName(std::string_view choices, int64_t index) {
  for (; index > 0; --index) {
    const size_t bar = choices.find('|');
    if (bar == choices.npos) return {};
    choices.remove_prefix(bar + 1);
  }
  return choices.substr(0, choices.find('|'));
}
constexpr int64_t ChoiceIndex(std::string_view choices, std::string_view name) {
  for (int64_t i = 0;; ++i) {
    const std::string_view one = ChoiceName(choices, i);
    if (one.empty() || one == name) return one.empty() ? -1 : i;
  }
}

struct Output {
  std::string_view name;
  std::string_view shape;
  std::string_view dtype;  // a parameter's name ("input") or a dtype ("float32", "int64")
  std::string_view doc;
  // The condition for the output to exist: "return_lse" if that boolean is true or that optional tensor is given,
  // "!scale" if not. All outputs of a contract that have a condition have it on the same parameter.
  std::string_view only_if = {};
  bool layout = false;
  std::string_view dtype_choice = {};  // a choice parameter whose value names the dtype; wins over `dtype`
  std::string_view may_alias = {};     // the input that out= may share memory with: kernels read an element before they
                                       // write it
  std::string_view choice_dtypes = {};  // "int8|uint8": the dtype for each of its values, where the values do not
                                        // name dtypes

  constexpr bool Present(bool condition) const { return only_if.empty() || condition != only_if.starts_with('!'); }
  constexpr std::string_view Condition() const { return only_if.substr(only_if.starts_with('!')); }
};

// One operation of a contract. The operation of a call is the first whose conditions all hold.
struct Condition {
  std::string_view field;
  Rel rel;
  int64_t operand;
};
struct Variant {
  std::string_view id;  // "attention.gqa.decode"
  std::span<const Condition> when = {};
};

// A named integer expression of axes that constraints may use: {"group", "h_q / h_kv"}.
struct DerivedFact {
  std::string_view name;
  std::string_view expression;
};

// How results are compared with the FP64 reference.
enum class Compare : uint8_t {
  kElementwise,  // |x - r| <= atol + rtol |r|, atol = rtol (A11)
  kRowMax,       // relative to the largest |r| of the output row (contractions)
  kExact,        // bit for bit
  kToken,        // sampled ids: equal, or the reference's cumulative probability is within atol of the draw
};
struct Tolerance {
  Compare compare = Compare::kElementwise;
  double f32 = 1e-5;
  double f16 = 1e-3;
  double bf16 = 1e-2;
  double f64 = 1e-12;
};

// The bound arguments of one call, which canonicalize reads and may change.
struct BoundArgs {
  const lz_tensor* tensors;  // parameters in order (absent: ndim -1)
  lz_scalar* scalars;        // parameters in order; canonicalize may set those that were not given
  const int64_t* axes;
};

struct Contract {
  std::string_view name;     // flat name: lz.<name>, torch.ops.layerzero.<name>
  std::string_view summary;  // one sentence
  std::string_view definition;
  std::string_view source;    // of the formula or the algorithm
  std::string_view replaces;  // the torch expression it replaces
  std::span<const Variant> variants;
  std::span<const Param> params;
  std::span<const Output> outputs;
  std::span<const DerivedFact> derived = {};
  std::string_view layouts =
      {};  // "BSHD: b s h d | BHSD: b h s d": values of the `layout` argument, first = as in shapes
  Tolerance tolerance = {};
  std::span<const std::string_view> numerics_classes = {};  // classes besides A11 that kernels may declare
  // Semantic checks and defaults that shapes cannot express. nullptr: none.
  Status (*canonicalize)(BoundArgs& args) = nullptr;
  std::span<const std::string_view> aliases = {};  // deprecated operation names that mean this contract
  bool differentiable = true;                      // a gradient through the torch reference is meaningful
};

}  // namespace lz
