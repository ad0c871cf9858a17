// A contract compiled for speed: axes, shape programs and the fact slots that its calls fill.
//
// Facts of a call are 32 numbers of 32 bits:
//   0 classifier generation   1 device   2 policy   3 flags   4, 5 predicates   6 scalars that are booleans or choices
//   7.. one word per tensor parameter, then axes, derived facts and integer scalars
// Slots 0 to 6 and tensor words are compared exactly, under a mask of the bits that some rule reads; the rest
// as ranges.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/contract.h"
#include "core/limits.h"
#include "registry/expression.h"
#include "registry/field.h"

namespace lz {

struct OperationState;

enum FixedSlot : uint8_t {
  kSlotGeneration,
  kSlotDevice,
  kSlotPolicy,
  kSlotFlags,
  kSlotPredicates0,
  kSlotPredicates1,
  kSlotScalars,
  kFirstTensorSlot
};

// Bits of kSlotFlags.
enum FlagBit : int32_t { kFlagCapturing = 1, kFlagRequiresGrad = 2, kFlagLayoutShift = 2, kFlagLayoutMask = 3 << 2 };

// Bits of a tensor's word. An absent tensor has only the bits that no rule can object to.
enum TensorBit : int32_t {
  kTensorDTypeMask = 31,
  kTensorGiven = 1 << 5,
  kTensorLastDimStride1 = 1 << 6,
  kTensorContiguous = 1 << 7,
  kTensorAlignmentShift = 8,
  kTensorAlignmentMask = 7 << 8,
  kTensorBroadcast = 1 << 11,
  kTensorNdimShift = 12,
  kTensorNdimMask = 15 << 12,
  kTensorSameDType = 1 << 16,
  kTensorCast = 1 << 17,  // the plan casts it: every other bit describes the result
  kTensorOneElement = 1 << 18,
  kTensorColumnsDense = 1 << 19,  // the last axis but one is dense: a column-major matrix
};

// One axis of a tensor parameter or output.
struct Dim {
  enum class Kind : uint8_t { kAxis, kExpression, kAny } kind = Kind::kAny;
  int16_t axis = -1;
  int16_t expression = -1;
};
struct ShapeProgram {
  bool any_rank = false;  // "*"
  bool leading = false;   // starts with "..."
  std::vector<Dim> dims;  // without the "..."
  // For outputs only. "target{a, b | b, a}": one shape for each value of a choice parameter.
  int16_t choice = -1;  // scalar
  std::vector<ShapeProgram> alternatives;
  // For outputs only. "blocks(input; axis; rows; columns)": an output of the input's rank with the number of blocks
  // along each axis. A block covers `rows` of the last axis but one, `columns` of the last axis and one of each other
  // axis. If columns = 0, it covers all of every axis, except one of `axis` where that optional integer is given. dims:
  // rows, columns.
  int16_t blocks_of = -1;    // input
  int16_t blocks_axis = -1;  // scalar, or -1
};

// Immutable once built, except for its state, which registrations replace. Valid for the life of the process.
class Operation {
 public:
  static Result<std::unique_ptr<Operation>> Compile(const Contract& contract);

  const Contract& contract() const { return *contract_; }
  std::string_view name() const { return contract_->name; }
  size_t num_inputs() const { return inputs_.size(); }
  size_t num_outputs() const { return contract_->outputs.size(); }
  size_t num_scalars() const { return scalars_.size(); }
  const Param& input(size_t i) const { return contract_->params[inputs_[i]]; }
  const Param& scalar(size_t i) const { return contract_->params[scalars_[i]]; }
  const std::vector<uint8_t>& input_params() const { return inputs_; }
  const std::vector<uint8_t>& scalar_params() const { return scalars_; }
  const std::vector<std::string>& axes() const { return axes_; }
  const std::vector<ShapeProgram>& input_shapes() const { return input_shapes_; }
  const std::vector<ShapeProgram>& output_shapes() const { return output_shapes_; }
  const std::vector<Expression>& expressions() const { return expressions_; }
  const std::vector<Expression>& derived() const { return derived_; }
  const std::vector<std::vector<uint8_t>>& layouts() const { return layouts_; }  // [layout][logical axis] = physical
  const std::vector<std::string>& layout_names() const { return layout_names_; }
  int fold_scalar() const { return fold_scalar_; }  // index of the scalar with `folds`, or -1
  int fold_axis() const { return fold_axis_; }      // the axis whose size that scalar is
  // The number of parameters of a kernel in the host language, without an optional size that repeats an axis.
  size_t num_host_params() const { return num_host_params_; }
  int leading_axis() const { return leading_axis_; }           // index of "..." in axes, or -1
  uint32_t mutated_inputs() const { return mutated_inputs_; }  // bit i: input i is written in place
  int same_dtype(size_t input) const { return same_dtype_[input]; }
  // The parameter on which outputs with a condition depend, as an index into contract().params, or -1.
  int output_condition() const { return output_condition_; }
  // True if the input is one of those whose dtypes may differ and are cast to the promoted dtype.
  bool promotes(size_t input) const { return promotes_ >> input & 1; }
  bool any_promotes() const { return promotes_ != 0; }
  int head_axis() const { return head_axis_; }  // the axis of layouts that counts heads ("h"); -1: none
  // For operations that may mask later keys: the scalar `causal` and the axes of queries and keys.
  struct Causal {
    int scalar = -1, s_q = -1, s_kv = -1;
  };
  const std::optional<Causal>& causal() const { return causal_; }

  // Fields by name. An expression that is not a known field is not found here; it becomes a predicate.
  const std::vector<Field>& fields() const { return fields_; }
  std::optional<uint16_t> FindField(std::string_view name) const;
  std::optional<uint16_t> ScalarIndex(std::string_view name) const;
  std::optional<uint16_t> InputIndex(std::string_view name) const;

  uint8_t first_axis_slot() const { return first_axis_slot_; }
  uint8_t first_derived_slot() const { return first_derived_slot_; }
  const std::vector<std::pair<uint8_t, uint8_t>>& int_scalar_slots() const {
    return int_scalar_slots_;
  }  // scalar, slot
  size_t num_slots() const { return num_slots_; }
  uint8_t scalar_given_bit(size_t scalar) const { return scalar_given_bit_[scalar]; }
  uint8_t scalar_value_shift(size_t scalar) const { return scalar_value_shift_[scalar]; }

  // Variables of expressions: axes, then scalars by scalar index (not floats; choices and booleans as numbers).
  std::optional<int> ResolveVariable(std::string_view name) const;

  // The kernels that are registered for it now and the classes that their rules define. Replaced as a whole,
  // never edited.
  const OperationState& state() const { return *state_.load(std::memory_order_acquire); }
  void Publish(const OperationState* state) const { state_.store(state, std::memory_order_release); }

  uint16_t index() const { return index_; }        // index among all operations of the process
  std::string_view path() const { return path_; }  // path of its files below ops/, without suffix
  void SetPlace(uint16_t index, std::string_view path) { index_ = index, path_ = path; }

 private:
  explicit Operation(const Contract& contract) : contract_(&contract) {}
  Status CompileParams();
  Status CompileCondition(const Output& output);
  Status CompileFold();
  Status CompileShape(std::string_view text, bool output, ShapeProgram* program);
  Status CompileAlternatives(std::string_view text, ShapeProgram* program);
  Status CompileBlocks(std::string_view text, ShapeProgram* program);
  Status CompileLayouts();
  Status AssignSlots();
  void AddField(Field field);
  int AxisIndex(std::string_view name) const;

  const Contract* contract_;
  std::vector<uint8_t> inputs_, scalars_;  // indices into contract_->params
  std::vector<int> same_dtype_;
  uint32_t promotes_ = 0, mutated_inputs_ = 0;
  int head_axis_ = -1;
  std::optional<Causal> causal_;
  std::vector<std::string> axes_;
  std::vector<ShapeProgram> input_shapes_, output_shapes_;
  std::vector<Expression> expressions_, derived_;
  std::vector<std::vector<uint8_t>> layouts_;
  std::vector<std::string> layout_names_;
  int leading_axis_ = -1, output_condition_ = -1, fold_scalar_ = -1, fold_axis_ = -1;
  size_t num_host_params_ = 0;
  std::vector<Field> fields_;
  std::map<std::string, uint16_t, std::less<>> field_index_;
  uint8_t first_axis_slot_ = 0, first_derived_slot_ = 0;
  std::vector<std::pair<uint8_t, uint8_t>> int_scalar_slots_;
  std::vector<uint8_t> scalar_given_bit_, scalar_value_shift_;
  size_t num_slots_ = 0;
  uint16_t index_ = 0;
  std::string_view path_;
  mutable std::atomic<const OperationState*> state_{nullptr};
};

}  // namespace lz
