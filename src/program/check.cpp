#include "program/check.h"

#include <algorithm>
#include <utility>

namespace lz {
namespace {

using Kind = ProgramValue::Kind;
constexpr int64_t kMaxWidth = int64_t{1} << 31;  // upper bound of a row; keeps every product of a row's sizes
                                                 // below 2^63

bool InRows(Kind kind) { return kind == Kind::kRows || kind == Kind::kOutput; }

// Columns of a value that steps have written so far.
class Columns {
 public:
  void Add(int64_t begin, int64_t end) {
    std::erase_if(ranges_, [&](const auto& range) {
      if (range.first > end || range.second < begin) return false;
      begin = std::min(begin, range.first);
      end = std::max(end, range.second);
      return true;
    });
    ranges_.emplace_back(begin, end);
  }
  bool Hold(int64_t begin, int64_t end) const {
    return std::any_of(ranges_.begin(), ranges_.end(),
                       [&](const auto& range) { return range.first <= begin && end <= range.second; });
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;  // disjoint
};

// The columns from the first that an operand touches to the last; with a step, others may be in between.
int64_t Extent(const Operand& o) { return o.step ? (o.axes[0] - 1) * o.step + Width(o) / o.axes[0] : Width(o); }

bool Overlap(const Operand& a, const Operand& b) {
  return a.value >= 0 && a.value == b.value && a.column < b.column + Extent(b) && b.column < a.column + Extent(a);
}

class Checker {
 public:
  Checker(std::span<const ProgramValue> values, std::span<const ProgramStep> steps)
      : values_(values), steps_(steps), written_(values.size()), cache_axes_(values.size()) {}

  Status Run() {
    for (size_t v = 0; v < values_.size(); ++v) LZ_RETURN_IF_ERROR(Value(v));
    for (size_t s = 0; s < steps_.size(); ++s) LZ_RETURN_IF_ERROR(Step(s));
    for (size_t v = 0; v < values_.size(); ++v) {
      if (values_[v].kind != Kind::kOutput || written_[v].Hold(0, values_[v].width)) continue;
      return WrongProgram(Name(v), "steps that write all of an output", "columns that none writes");
    }
    return {};
  }

 private:
  static std::string Name(size_t value) { return "value " + std::to_string(value); }
  std::string Name(size_t step, std::string_view operand) const {
    return "step " + std::to_string(step) + " (" + std::string(steps_[step].op->name()) + "): " + std::string(operand);
  }

  Status Value(size_t v) const {
    const ProgramValue& value = values_[v];
    if (value.kind == Kind::kInput) return {};
    if (value.kind == Kind::kWeight) {
      const int32_t rank = value.weight.ndim;
      const bool fits =
          rank >= 0 && rank <= kMaxRank && value.shape.size() == size_t(rank) && value.strides.size() == size_t(rank);
      return fits ? Status() : WrongProgram(Name(v), "a tensor of at most 8 axes", "none, or one of more axes");
    }
    if (value.dtype == DType::kUnknown || ByteSize(value.dtype) == 0) {
      return WrongProgram(Name(v), "a dtype whose elements are whole bytes", std::string(Info(value.dtype).name));
    }
    if (InRows(value.kind) && (value.width < 1 || value.width > kMaxWidth)) {
      return WrongProgram(Name(v), "1 to 2^31 elements in a row", std::to_string(value.width));
    }
    return {};
  }

  Status Step(size_t s) {
    if (!steps_[s].op) return WrongProgram("step " + std::to_string(s), "an operation", "none");
    const ProgramStep& step = steps_[s];
    if (step.inputs.size() != step.op->num_inputs() || step.outputs.size() != step.op->num_outputs() ||
        step.scalars.size() != step.op->num_scalars()) {
      return WrongProgram(Name(s, "operands"), "as many as the operation has", "another number");
    }
    LZ_RETURN_IF_ERROR(Draw(s, step));
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      LZ_RETURN_IF_ERROR(Input(step.inputs[i], step.op->input(i), Name(s, step.op->input(i).name)));
    }
    for (size_t o = 0; o < step.outputs.size(); ++o) {
      LZ_RETURN_IF_ERROR(Output(step, o, Name(s, step.op->contract().outputs[o].name)));
    }
    for (const Operand& out : step.outputs) {
      if (out.value < 0) continue;
      const int64_t parts = out.step ? out.axes[0] : 1;  // others may be in between
      for (int64_t p = 0; p < parts; ++p) {
        const int64_t from = out.column + p * out.step;
        written_[size_t(out.value)].Add(from, from + Width(out) / parts);
      }
    }
    return {};
  }

  // A step that samples has a seed, the same in every run, or random numbers that each run supplies.
  Status Draw(size_t s, const ProgramStep& step) const {
    const auto seed = step.op->ScalarIndex("seed");
    const auto uniform = step.op->InputIndex("uniform");
    if (!seed || !uniform || step.scalars[*seed].given || step.inputs[*uniform].value >= 0) return {};
    return WrongProgram(Name(s, "seed"), "a seed, or uniform as a value of each run", "neither");
  }

  Status Input(const Operand& in, const Param& param, const std::string& name) {
    if (in.value == -1) return param.optional ? Status() : WrongProgram(name, "a value", "nothing");
    LZ_RETURN_IF_ERROR(Fits(in, name));
    const Kind kind = values_[size_t(in.value)].kind;
    if (param.mutated && kind != Kind::kInput) {
      return WrongProgram(name, "a tensor of the run, which the step writes", Name(size_t(in.value)));
    }
    if (kind == Kind::kWeight || kind == Kind::kInput) return {};
    if (written_[size_t(in.value)].Hold(in.column, in.column + Extent(in))) return {};
    return WrongProgram(name, "what an earlier step wrote", "columns of " + Name(size_t(in.value)) + " that none did");
  }

  Status Output(const ProgramStep& step, size_t o, const std::string& name) {
    const Operand& out = step.outputs[o];
    if (out.value == -1) return {};
    LZ_RETURN_IF_ERROR(Fits(out, name));
    const Kind kind = values_[size_t(out.value)].kind;
    if (kind == Kind::kWeight || kind == Kind::kInput || out.past) {
      return WrongProgram(name, "rows, an output or the new rows of a cache", Name(size_t(out.value)));
    }
    const auto touches = [&](const Operand& other) { return Overlap(out, other); };
    if (std::any_of(step.inputs.begin(), step.inputs.end(), touches) ||
        std::any_of(step.outputs.begin(), step.outputs.begin() + ptrdiff_t(o), touches)) {
      return WrongProgram(name, "memory that no other operand of the step has", Name(size_t(out.value)));
    }
    return {};
  }

  Status Fits(const Operand& o, const std::string& name) {
    if (o.value < 0 || size_t(o.value) >= values_.size()) {
      return WrongProgram(name, "one of " + std::to_string(values_.size()) + " values", std::to_string(o.value));
    }
    const ProgramValue& value = values_[size_t(o.value)];
    if (value.kind == Kind::kWeight || value.kind == Kind::kInput) {
      const bool whole = o.axes.empty() && o.column == 0 && !o.past && !o.step && !o.packed;
      return whole ? Status() : WrongProgram(name, "a weight or an input as it is", "a part of one");
    }
    const int64_t width = Width(o);
    if (o.axes.empty() || o.axes.size() + 2 > size_t(kMaxRank) || width < 1 || width > kMaxWidth || o.column < 0) {
      return WrongProgram(name, "1 to 6 axes of at least 1 element each", "other axes");
    }
    if (o.step && (!InRows(value.kind) || o.step < width / o.axes[0] || o.step > value.width)) {
      return WrongProgram(name, "a step in a row, from an entry of the first axis to the next", std::to_string(o.step));
    }
    if (InRows(value.kind)) {
      if (!o.past && o.column <= value.width - Extent(o)) return {};
      return WrongProgram(name, "columns among the " + std::to_string(value.width) + " of a row",
                          std::to_string(width) + " from " + std::to_string(o.column));
    }
    std::vector<int64_t>& axes = cache_axes_[size_t(o.value)];
    if (axes.empty()) axes = o.axes;
    if (o.column == 0 && !o.packed && axes == o.axes) return {};
    return WrongProgram(name, "the same axes of a cache wherever it is used", "others");
  }

  std::span<const ProgramValue> values_;
  std::span<const ProgramStep> steps_;
  std::vector<Columns> written_;
  std::vector<std::vector<int64_t>> cache_axes_;
};

}  // namespace

int64_t Width(const Operand& operand) {
  int64_t width = 1;
  for (int64_t size : operand.axes) {
    if (size < 1 || __builtin_mul_overflow(width, size, &width)) return -1;
  }
  return width;
}

std::string ShapeText(std::span<const int64_t> shape, DType dtype) {
  std::string text;
  for (int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "] of " + std::string(Info(dtype).name);
}

Status WrongProgram(std::string field, std::string wanted, std::string got) {
  return Status(StatusCode::kInvalidRequest, {.field = "program: " + std::move(field),
                                              .wanted = std::move(wanted),
                                              .got = std::move(got),
                                              .fix = "docs/design/0006-programs.md says what a program is"});
}

Status CheckProgram(std::span<const ProgramValue> values, std::span<const ProgramStep> steps) {
  return Checker(values, steps).Run();
}

}  // namespace lz
