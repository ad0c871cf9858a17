#include "program/program.h"

#include <algorithm>
#include <utility>

#include "pipeline/transform.h"
#include "program/run.h"

namespace lz {
namespace {

using Kind = ProgramValue::Kind;
constexpr int64_t kWidestItem = 8;
int64_t Aligned(int64_t bytes) { return int64_t(AlignWorkspace(uint64_t(bytes))); }

Status Wrong(std::string field, std::string wanted, std::string got) {
  return Status(StatusCode::kInvalidRequest, {.field = "program: " + std::move(field),
                                              .wanted = std::move(wanted),
                                              .got = std::move(got),
                                              .fix = "see src/program/program.h for what a program is"});
}
std::string Name(const ProgramStep& step, size_t index) {
  return "step " + std::to_string(index) + " (" + std::string(step.op->name()) + ")";
}

int64_t Width(const Operand& o) {
  int64_t width = 1;
  for (int64_t n : o.axes) width *= n;
  return width;
}

// First and last step that touches a value.
struct Life {
  size_t first = SIZE_MAX, last = 0;
  void Touch(size_t step) {
    first = std::min(first, step);
    last = std::max(last, step);
  }
};

}  // namespace

Program::Program(Engine& engine, std::vector<ProgramValue> values, std::vector<ProgramStep> steps)
    : engine_(engine), values_(std::move(values)), steps_(std::move(steps)) {}
Program::~Program() = default;

Result<std::unique_ptr<Program>> Program::Make(Engine& engine, std::vector<ProgramValue> values,
                                               std::vector<ProgramStep> steps) {
  std::unique_ptr<Program> program(new Program(engine, std::move(values), std::move(steps)));
  for (ProgramValue& v : program->values_) {
    v.weight.shape = v.shape.data();
    v.weight.strides = v.strides.data();
    program->index_of_kind_.push_back(int32_t(program->count_of_kind_[size_t(v.kind)]++));
  }
  LZ_RETURN_IF_ERROR(program->Check());
  program->PlaceRows();
  return program;
}

Status Program::Check() {
  std::vector<bool> written(values_.size());
  const auto fits = [&](const Operand& o) {
    if (o.value < 0 || size_t(o.value) >= values_.size()) return o.value == -1;
    const ProgramValue& v = values_[size_t(o.value)];
    if (v.kind == Kind::kWeight || v.kind == Kind::kInput) return true;
    if (o.axes.empty() || o.axes.size() + 2 > size_t(kMaxRank) || Width(o) <= 0 || o.column < 0) return false;
    return v.kind == Kind::kCache ? o.column == 0 : o.column + Width(o) <= v.width;
  };
  for (size_t s = 0; s < steps_.size(); ++s) {
    const ProgramStep& step = steps_[s];
    if (step.inputs.size() != step.op->num_inputs() || step.outputs.size() != step.op->num_outputs() ||
        step.scalars.size() != step.op->num_scalars()) {
      return Wrong(Name(step, s), "as many operands as the operation has", "another number");
    }
    for (const Operand& in : step.inputs) {
      if (!fits(in)) return Wrong(Name(step, s), "inputs that lie within their values", "one that does not");
      if (in.value < 0) continue;
      const Kind kind = values_[size_t(in.value)].kind;
      const bool own = kind == Kind::kRows || kind == Kind::kOutput || kind == Kind::kCache;
      if (own && !written[size_t(in.value)]) {
        return Wrong(Name(step, s), "inputs that an earlier step wrote", "value " + std::to_string(in.value));
      }
    }
    for (const Operand& out : step.outputs) {
      if (!fits(out)) return Wrong(Name(step, s), "outputs that lie within their values", "one that does not");
      if (out.value < 0) continue;
      const Kind kind = values_[size_t(out.value)].kind;
      if (kind == Kind::kWeight || kind == Kind::kInput || out.past) {
        return Wrong(Name(step, s), "outputs among rows, outputs and new rows of a cache", "another value");
      }
      written[size_t(out.value)] = true;
    }
  }
  return {};
}

// Values that live at the same time lie apart; the others share. Greedy, in order of first use: a decoder's values are
// few and its layers alike, so the second layer falls into the places of the first.
void Program::PlaceRows() {
  std::vector<Life> lives(values_.size());
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (const auto* operands : {&steps_[s].inputs, &steps_[s].outputs}) {
      for (const Operand& o : *operands) {
        if (o.value >= 0) lives[size_t(o.value)].Touch(s);
      }
    }
  }
  const auto bytes_of = [&](size_t value) { return Aligned(values_[value].width * ByteSize(values_[value].dtype)); };
  std::vector<size_t> order;
  for (size_t v = 0; v < values_.size(); ++v) {
    if (values_[v].kind == Kind::kRows && lives[v].first != SIZE_MAX) order.push_back(v);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lives[a].first < lives[b].first; });
  places_.assign(values_.size(), 0);
  std::vector<size_t> placed;  // still alive
  for (size_t v : order) {
    std::erase_if(placed, [&](size_t other) { return lives[other].last < lives[v].first; });
    std::sort(placed.begin(), placed.end(), [&](size_t a, size_t b) { return places_[a] < places_[b]; });
    int64_t place = 0;
    for (size_t other : placed) {
      if (places_[other] - place >= bytes_of(v)) break;
      place = std::max(place, places_[other] + bytes_of(other));
    }
    places_[v] = place;
    placed.push_back(v);
    row_bytes_ = std::max(row_bytes_, place + bytes_of(v));
  }
  for (const ProgramStep& step : steps_) {
    int64_t bytes = 0;
    for (const Operand& o : step.outputs) {
      if (o.value >= 0) bytes += Aligned(Width(o) * kWidestItem);
    }
    spare_row_bytes_ = std::max(spare_row_bytes_, bytes);
  }
}

Status Program::CheckArguments(const RunArguments& a) const {
  const auto count = [&](Kind kind) { return count_of_kind_[size_t(kind)]; };
  if (a.batch < 0 || a.length < 0 || a.past < 0) return Wrong("sizes", "at least 0", "less");
  if (a.inputs.size() != count(Kind::kInput) || a.outputs.size() != count(Kind::kOutput) ||
      a.caches.size() != count(Kind::kCache)) {
    return Wrong("tensors", "one for each input, output and cache", "another number");
  }
  for (size_t v = 0; v < values_.size(); ++v) {
    const ProgramValue& value = values_[v];
    const size_t i = size_t(index_of_kind_[v]);
    if (value.kind == Kind::kOutput) {
      const lz_tensor& t = a.outputs[i];
      const bool fits = t.ndim == 3 && t.shape[0] == a.batch && t.shape[1] == a.length && t.shape[2] == value.width;
      if (!fits || DTypeOf(t) != value.dtype) return Wrong("output", "[batch, length, width] of its dtype", "another");
    } else if (value.kind == Kind::kCache) {
      const lz_tensor& t = a.caches[i];
      if (t.ndim < 2 || t.shape[0] != a.batch || t.shape[1] < a.past + a.length || DTypeOf(t) != value.dtype) {
        return Wrong("cache " + std::to_string(i),
                     "[batch, at least " + std::to_string(a.past + a.length) + " positions, ...] of its dtype",
                     "another shape or dtype");
      }
    }
  }
  return {};
}

std::unique_ptr<ProgramRun> Program::Take() {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<ProgramRun>(*this);
  std::unique_ptr<ProgramRun> run = std::move(idle_.back());
  idle_.pop_back();
  return run;
}

void Program::Return(std::unique_ptr<ProgramRun> run) {
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(run));
}

Status Program::Run(const RunArguments& arguments) {
  LZ_RETURN_IF_ERROR(CheckArguments(arguments));
  if (arguments.batch == 0 || arguments.length == 0) return {};
  std::unique_ptr<ProgramRun> run = Take();
  Status status = run->Run(arguments);
  Return(std::move(run));
  return status;
}

Result<std::vector<const Plan*>> Program::Plans(const RunArguments& arguments) {
  LZ_RETURN_IF_ERROR(CheckArguments(arguments));
  std::unique_ptr<ProgramRun> run = Take();
  Status status = run->Bind(arguments);
  std::vector<const Plan*> plans;
  for (size_t s = 0; status.ok() && s < steps_.size(); ++s) plans.push_back(run->plan(s));
  Return(std::move(run));
  if (!status.ok()) return status;
  return plans;
}

Result<std::string> Program::Explain(const RunArguments& arguments, size_t step) {
  LZ_RETURN_IF_ERROR(CheckArguments(arguments));
  if (step >= steps_.size()) {
    return Wrong("step", "less than " + std::to_string(steps_.size()), std::to_string(step));
  }
  ProgramRun run(*this);
  return engine_.Explain(run.Fill(arguments, step));
}

}  // namespace lz
