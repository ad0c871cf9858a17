#include "program/program.h"

#include <algorithm>
#include <utility>

#include "core/limits.h"
#include "pipeline/request_memory.h"
#include "pipeline/transform.h"
#include "program/check.h"
#include "program/run.h"

namespace lz {
namespace {

using Kind = ProgramValue::Kind;
constexpr int64_t kWidestItem = 8;
int64_t Aligned(int64_t bytes) { return int64_t(AlignWorkspace(uint64_t(bytes))); }

std::string Text(const lz_tensor& t) {
  if (t.ndim < 0) return "nothing";
  return ShapeText({t.shape, size_t(t.ndim)}, DTypeOf(t)) + (IsDense(t) ? "" : ", strided") +
         (IsCpu(t.device) ? "" : ", elsewhere");
}

// True for [batch, positions or more, axes...] on the CPU.
bool IsRows(const lz_tensor& t, int64_t batch, int64_t positions, std::span<const int64_t> axes) {
  return IsCpu(t.device) && t.ndim == int32_t(2 + axes.size()) && t.shape[0] == batch && t.shape[1] >= positions &&
         std::equal(axes.begin(), axes.end(), t.shape + 2);
}
// True if several elements share memory.
bool IsExpanded(const lz_tensor& t) {
  for (int32_t d = 0; d < t.ndim; ++d) {
    if (t.shape[d] > 1 && t.strides[d] == 0) return true;
  }
  return false;
}

// The first byte and one past the last.
std::pair<uintptr_t, uintptr_t> Extent(const lz_tensor& t) {
  const int64_t item = int64_t{t.dtype.bits} * t.dtype.lanes / 8;
  uintptr_t begin = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset, end = begin + uintptr_t(item);
  for (int32_t d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 0) return {0, 0};
    const int64_t way = (t.shape[d] - 1) * t.strides[d] * item;
    (way < 0 ? begin : end) += uintptr_t(way);
  }
  return {begin, end};
}
bool Overlap(const lz_tensor& a, const lz_tensor& b) {
  if (a.ndim < 0 || b.ndim < 0) return false;
  const auto [a_begin, a_end] = Extent(a);
  const auto [b_begin, b_end] = Extent(b);
  return a_begin < b_end && b_begin < a_end;
}

// The first and last step that touch a value.
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
  LZ_RETURN_IF_ERROR(CheckProgram(program->values_, program->steps_));
  program->PlaceRows();
  program->FindCacheAxes();
  program->FindWrittenInputs();
  return program;
}

// Values that are alive at the same time get disjoint memory; the others share. Greedy, in order of first use: a
// decoder has few values and its layers are alike, so the second layer reuses the places of the first.
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

void Program::FindCacheAxes() {
  cache_axes_.resize(count_of_kind_[size_t(Kind::kCache)]);
  for (const ProgramStep& step : steps_) {
    for (const auto* operands : {&step.inputs, &step.outputs}) {
      for (const Operand& o : *operands) {
        if (o.value < 0 || values_[size_t(o.value)].kind != Kind::kCache) continue;
        cache_axes_[size_t(index_of_kind_[size_t(o.value)])] = o.axes;
      }
    }
  }
}

void Program::FindWrittenInputs() {
  written_inputs_.resize(count_of_kind_[size_t(Kind::kInput)]);
  for (const ProgramStep& step : steps_) {
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      if (step.inputs[i].value < 0 || !step.op->input(i).mutated) continue;
      written_inputs_[size_t(index_of_kind_[size_t(step.inputs[i].value)])] = true;
    }
  }
}

Status Program::CheckSizes(const RunArguments& a) const {
  if (a.batch < 0 || a.length < 0 || a.past < 0) {
    return WrongProgram("sizes", "batch, length and past of at least 0",
                        std::to_string(std::min({a.batch, a.length, a.past})));
  }
  int64_t rows, bytes, total;
  if (__builtin_mul_overflow(a.batch, a.length, &rows) || __builtin_add_overflow(a.past, a.length, &total) ||
      __builtin_mul_overflow(rows, row_bytes_ + spare_row_bytes_, &bytes)) {
    return WrongProgram("sizes", "rows that fit into 2^63 bytes", "more");
  }
  const auto counted = [&](std::string_view name, size_t given, Kind kind) {
    const size_t wanted = count_of_kind_[size_t(kind)];
    return given == wanted ? Status() : WrongProgram(std::string(name), std::to_string(wanted), std::to_string(given));
  };
  LZ_RETURN_IF_ERROR(counted("number of inputs", a.inputs.size(), Kind::kInput));
  LZ_RETURN_IF_ERROR(counted("number of outputs", a.outputs.size(), Kind::kOutput));
  return counted("number of caches", a.caches.size(), Kind::kCache);
}

Status Program::CheckArguments(const RunArguments& a) const {
  LZ_RETURN_IF_ERROR(CheckSizes(a));
  for (size_t v = 0; v < values_.size(); ++v) {
    const size_t i = size_t(index_of_kind_[v]);
    switch (values_[v].kind) {
      case Kind::kInput: LZ_RETURN_IF_ERROR(CheckInput(a, i)); break;
      case Kind::kOutput: LZ_RETURN_IF_ERROR(CheckOutput(a, i, values_[v])); break;
      case Kind::kCache: LZ_RETURN_IF_ERROR(CheckCache(a, i, values_[v])); break;
      default: break;
    }
  }
  return {};
}

Status Program::CheckInput(const RunArguments& a, size_t i) const {
  const lz_tensor& t = a.inputs[i];
  if (t.ndim < 0 || (t.ndim <= kMaxRank && IsCpu(t.device))) return {};
  return WrongProgram("input " + std::to_string(i), "a tensor of at most 8 axes on the CPU",
                      t.ndim > kMaxRank ? std::to_string(t.ndim) + " axes" : Text(t));
}

Status Program::CheckOutput(const RunArguments& a, size_t i, const ProgramValue& value) const {
  const lz_tensor& t = a.outputs[i];
  const int64_t axes[] = {value.width};
  const bool fits = IsRows(t, a.batch, a.length, axes) && t.shape[1] == a.length && DTypeOf(t) == value.dtype;
  if (fits && IsDense(t)) {
    const auto shared = [&](const lz_tensor& other) { return Overlap(t, other); };
    if (std::none_of(a.inputs.begin(), a.inputs.end(), shared) &&
        std::none_of(a.outputs.begin(), a.outputs.begin() + ptrdiff_t(i), shared) &&
        std::none_of(a.caches.begin(), a.caches.end(), shared)) {
      return {};
    }
    return WrongProgram("output " + std::to_string(i), "memory of its own", "that of another tensor of the run");
  }
  const int64_t shape[] = {a.batch, a.length, value.width};
  return WrongProgram("output " + std::to_string(i), "a dense tensor " + ShapeText(shape, value.dtype), Text(t));
}

Status Program::CheckCache(const RunArguments& a, size_t i, const ProgramValue& value) const {
  const std::vector<int64_t>& axes = cache_axes_[i];
  const lz_tensor& t = a.caches[i];
  const bool fits = IsRows(t, a.batch, a.past + a.length, axes) && DTypeOf(t) == value.dtype && !IsExpanded(t);
  if (fits || axes.empty()) return {};
  std::vector<int64_t> shape = {a.batch, a.past + a.length};
  shape.insert(shape.end(), axes.begin(), axes.end());
  return WrongProgram("cache " + std::to_string(i),
                      "a tensor " + ShapeText(shape, value.dtype) + " or of more positions", Text(t));
}

std::unique_ptr<ProgramRun> Program::Take() {
  std::unique_ptr<ProgramRun> run;
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      run = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  return run ? std::move(run) : std::make_unique<ProgramRun>(*this);
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
    return WrongProgram("step", "less than " + std::to_string(steps_.size()), std::to_string(int64_t(step)));
  }
  ProgramRun run(*this);
  auto request = run.Fill(arguments, step);
  return request.ok() ? engine_.Explain(**request) : request.TakeStatus();
}

}  // namespace lz
