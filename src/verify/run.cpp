#include "verify/run.h"

#include <algorithm>
#include <cstring>

#include "base/reclaimer.h"
#include "core/view.h"
#include "pipeline/filter.h"
#include "verify/generator.h"

namespace lz::verify {
namespace {

// Splits on one thread into the smallest parts that the contract of lz_parallel allows, so that every boundary
// is crossed.
void RunParts(void*, int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
  grain = std::max<int64_t>(1, grain);
  while (end - begin >= 2 * grain) {
    body(begin, begin + grain, context);
    begin += grain;
  }
  if (begin < end) body(begin, end, context);
}
constexpr lz_parallel kParts{&RunParts, nullptr, 4};

bool IsFloat(DType type) { return kFloats >> int(type) & 1; }

const KernelEntry* ReferenceOf(const Request& bound) {
  const Reclaimer::Guard guard;
  Request r = bound;
  KeepCurrent(r);
  const int variant = VariantOf(r);
  if (variant < 0) return nullptr;
  const KernelEntry* best = nullptr;
  for (const KernelEntry* k : r.state->kernels[size_t(variant)]) {
    if (!k->spec.reference || k->spec.call != CallKind::kNative) continue;
    if (!best || k->spec.priority > best->spec.priority) best = k;
  }
  return best;
}

lz_kernel_args ArgumentsOf(const Request& r, const lz_tensor* tensors) {
  lz_kernel_args args{};
  args.size = sizeof(args);
  args.tensors = tensors;
  args.scalars = r.scalars.data();
  args.axes = r.axes();
  args.parallel = &kParts;
  return args;
}

CaseResult Failed(std::string text) {
  CaseResult result;
  result.verdict = Verdict::kFailed;
  result.text = std::move(text);
  return result;
}
CaseResult NotAdmitted(std::string text) {
  CaseResult result;
  result.verdict = Verdict::kNotAdmitted;
  result.text = std::move(text);
  return result;
}

// A plan of this kernel for the request, or the reason why there is none.
Result<const Plan*> SelectLocked(Selector& selector, Request& r, const KernelEntry& kernel) {
  const std::string lock = R"({"locks": {")" + kernel.operation + R"(": ")" + kernel.id + R"("}})";
  auto scope = selector.policies().Scope(0, lock);
  if (!scope.ok()) return scope.TakeStatus();
  r.policy = *scope;
  LZ_RETURN_IF_ERROR(selector.Bind(r));
  return selector.Select(r);
}

std::string Changed(const Param& p) { return "input " + std::string(p.name) + " was changed"; }

// Checks that a call that is refused at launch writes nothing, not even in place.
CaseResult Unchanged(const Case& c, const std::vector<OwnedTensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].SameBytes(c.tensors[i])) return Failed(Changed(c.op->input(i)));
  }
  return {};
}

}  // namespace

OwnedTensor CopyOf(const lz_tensor& t) {
  OwnedTensor copy = OwnedTensor::RowMajor(DTypeOf(t), {t.shape, t.shape + t.ndim});
  const int64_t item = ByteSize(DTypeOf(t));
  const char* const from = static_cast<const char*>(t.data) + t.byte_offset;
  copy.ForEach([&](int64_t flat, int64_t to) {
    std::memcpy(copy.data() + to * item, from + ElementOffset(t, flat) * item, size_t(item));
  });
  return copy;
}

namespace {

std::vector<OwnedTensor> MakeOutputs(const Request& r) {
  std::vector<OwnedTensor> outputs(r.op->num_outputs());
  for (size_t o = 0; o < outputs.size(); ++o) {
    const OutputShape& shape = r.outputs[o];
    if (shape.ndim < 0) continue;
    outputs[o] = OwnedTensor::RowMajor(shape.dtype, {shape.physical, shape.physical + shape.ndim});
  }
  return outputs;
}

// The reference's memory after a run on the tensors of `inputs`: those written in place, and every output, in its own
// dtype; output number `wide` in FP64.
Result<std::vector<OwnedTensor>> RunReference(const Request& bound, std::array<lz_tensor, kMaxTensors> tensors,
                                              size_t wide) {
  const KernelEntry* reference = ReferenceOf(bound);
  if (!reference) {
    return Status(StatusCode::kNoKernel, {.field = std::string(bound.op->name()), .wanted = "a reference kernel"});
  }
  const size_t inputs = bound.op->num_inputs(), count = bound.op->num_outputs();
  std::vector<OwnedTensor> memory(inputs + count);
  for (size_t i = 0; i < inputs; ++i) {
    if (bound.op->input(i).mutated && tensors[i].ndim >= 0) {
      memory[i] = CopyOf(tensors[i]);
      tensors[i] = memory[i].tensor();
    }
  }
  for (size_t o = 0; o < count; ++o) {
    const OutputShape& shape = bound.outputs[o];
    if (shape.ndim >= 0) {
      memory[inputs + o] =
          OwnedTensor::RowMajor(o == wide ? DType::kF64 : shape.dtype, {shape.shape, shape.shape + shape.ndim});
    }
    tensors[inputs + o] = memory[inputs + o].tensor();
  }
  const lz_kernel_args args = ArgumentsOf(bound, tensors.data());
  const int32_t code = reference->spec.launch(&args);
  if (code == 0) return memory;
  return Status(StatusCode::kKernelFailed, {.field = "kernel " + reference->id, .got = std::to_string(code)});
}

std::vector<double> DoublesOf(const OwnedTensor& t) {
  const double* values = reinterpret_cast<const double*>(t.data());
  return {values, values + t.numel()};
}

// A copy in FP64, each element changed by the fraction `relative`.
OwnedTensor Moved(const lz_tensor& t, double relative, Generator* signs) {
  const View from(t);
  OwnedTensor to = OwnedTensor::RowMajor(DType::kF64, {t.shape, t.shape + t.ndim});
  const lz_tensor moved = to.tensor();
  to.ForEach([&](int64_t flat, int64_t at) {
    const double value = from.Load(ElementOffset(t, flat));
    View(moved).Store(at, value * (signs->Chance(0.5) ? 1 + relative : 1 - relative));
  });
  return to;
}

}  // namespace

Status ReferenceAccepts(const Request& bound) {
  auto memory = RunReference(bound, bound.tensors, bound.op->num_outputs());
  return memory.ok() ? Status() : memory.TakeStatus();
}

Result<Expected> Expected::Of(const Request& bound) {
  const size_t inputs = bound.op->num_inputs(), count = bound.op->num_outputs();
  const bool exact = bound.op->contract().tolerance.compare == lz::Compare::kExact;
  Expected expected;
  expected.op_ = bound.op;
  expected.tensors_.resize(inputs + count);
  for (size_t i = 0; i < inputs; ++i) {
    if (bound.op->input(i).mutated && bound.tensors[i].ndim >= 0) {
      expected.tensors_[i].given = CopyOf(bound.tensors[i]);
    }
  }
  // Pass `count` stores every output in its own dtype. The passes before it store one float output each in FP64 and the
  // others in their dtypes: if a definition rounds one output and continues from there, the reference still does.
  for (size_t pass = 0; pass <= count; ++pass) {
    if (pass < count && (bound.outputs[pass].ndim < 0 || exact || !IsFloat(bound.outputs[pass].dtype))) continue;
    auto memory = RunReference(bound, bound.tensors, pass);
    if (!memory.ok()) return memory.TakeStatus();
    if (pass == count) {
      for (size_t t = 0; t < memory->size(); ++t) expected.tensors_[t].stored = std::move((*memory)[t]);
    } else {
      expected.tensors_[inputs + pass].exact = DoublesOf((*memory)[inputs + pass]);
    }
  }
  return expected;
}

std::string_view Expected::NameOf(size_t tensor) const {
  const size_t inputs = op_->num_inputs();
  return tensor < inputs ? op_->input(tensor).name : op_->contract().outputs[tensor - inputs].name;
}

OutputReport Expected::CompareOne(const Request& r, size_t tensor, std::string_view numerics) const {
  const One& one = tensors_[tensor];
  const lz_tensor& got = r.tensors[tensor];
  OwnedTensor stored = one.stored;
  if (r.op->contract().tolerance.compare == lz::Compare::kExact || !IsFloat(stored.dtype())) {
    return CompareExact(NameOf(tensor), got, stored.tensor());
  }
  std::vector<double> wanted = one.exact;
  if (tensor < r.op->num_inputs()) {
    const lz_tensor t = stored.tensor();
    for (int64_t i = 0; i < stored.numel(); ++i) wanted.push_back(View(t).Load(i));
  }
  const auto nearby = [&](double relative, int draw) -> std::vector<double> {
    const size_t inputs = r.op->num_inputs();
    std::array<lz_tensor, kMaxTensors> tensors = r.tensors;
    std::vector<OwnedTensor> moved(inputs);
    Generator signs(static_cast<uint64_t>(draw));
    for (size_t i = 0; i < inputs; ++i) {
      if (tensors[i].ndim < 0) continue;
      if (tensors_[i].given.given()) {  // not as the kernel has changed it
        moved[i] = tensors_[i].given;
        tensors[i] = moved[i].tensor();
      }
      if (!IsFloat(DTypeOf(tensors[i]))) continue;
      moved[i] = Moved(tensors[i], relative, &signs);
      tensors[i] = moved[i].tensor();
    }
    auto memory = RunReference(r, tensors, tensor - inputs);
    return memory.ok() ? DoublesOf((*memory)[tensor]) : std::vector<double>();
  };
  return CompareFloats(r.op->contract(), numerics, NameOf(tensor), got, wanted, nearby);
}

std::vector<OutputReport> Expected::Compare(const Request& r, std::string_view numerics) const {
  if (r.op->contract().tolerance.compare == lz::Compare::kToken) return {CompareTokens(r)};
  std::vector<OutputReport> reports;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].stored.given()) reports.push_back(CompareOne(r, t, numerics));
  }
  return reports;
}

std::string Expected::DifferenceFrom(const Expected& other) const {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const One &a = tensors_[t], &b = other.tensors_[t];
    const bool same = a.stored.SameBytes(b.stored) && a.exact.size() == b.exact.size() &&
                      (a.exact.empty() || std::memcmp(a.exact.data(), b.exact.data(), a.exact.size() * 8) == 0);
    if (!same) return std::string(NameOf(t));
  }
  return {};
}

CaseResult RunCase(Selector& selector, Case& c, const KernelEntry& kernel, std::optional<Result<Expected>>* expected) {
  Request r = c.MakeRequest();
  r.parallel = &kParts;
  auto plan = SelectLocked(selector, r, kernel);
  if (!plan.ok()) {
    if (plan.status().code() == StatusCode::kNoKernel) return NotAdmitted(plan.status().Text());
    return Failed(plan.status().Text());
  }
  if ((*plan)->kernel != &kernel) return NotAdmitted("another variant: " + (*plan)->kernel->operation);

  const std::vector<OwnedTensor> inputs = c.tensors;
  std::vector<OwnedTensor> outputs = MakeOutputs(r);
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (outputs[o].given()) BindOutput(r, o, outputs[o].tensor().data);
  }
  OwnedTensor workspace = OwnedTensor::RowMajor(DType::kU8, {int64_t(WorkspaceBytes(**plan, r))});
  if (workspace.numel() > 0) {
    r.workspace = workspace.data();
    r.workspace_bytes = uint64_t(workspace.numel());
  }
  std::optional<Result<Expected>> computed;
  if (!expected) expected = &computed;
  if (!*expected) expected->emplace(Expected::Of(r));
  const Result<Expected>& wanted = **expected;
  const Status run = selector.Run(**plan, r);
  // Data that a kernel must refuse at launch (an index outside its tensor): either all kernels refuse it or none.
  if (!run.ok() || !wanted.ok()) {
    if (!run.ok() && !wanted.ok()) return Unchanged(c, inputs);
    return Failed(run.ok() ? "the reference fails (" + wanted.status().Text() + "), the kernel does not" : run.Text());
  }
  CaseResult result;
  result.copied = (*plan)->transforms.any();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Param& p = c.op->input(i);
    if (p.mutated && c.tensors[i].given() && !c.tensors[i].GuardsIntact()) {
      return Failed("wrote outside " + std::string(p.name));
    }
    if (!p.mutated && !inputs[i].SameBytes(c.tensors[i])) return Failed(Changed(p));
  }
  for (const OwnedTensor& output : outputs) {
    if (output.given() && !output.GuardsIntact()) return Failed("wrote outside an output");
  }
  if (!workspace.GuardsIntact()) return Failed("wrote outside its workspace");
  result.outputs = wanted->Compare(r, kernel.spec.numerics);
  for (const OutputReport& report : result.outputs) {
    if (report.ok) continue;
    result.verdict = Verdict::kFailed;
    result.text += (result.text.empty() ? "" : "; ") + report.Text();
  }
  return result;
}

bool IsAbout(const Status& status, std::string_view field) {
  std::string_view got = status.parts().field;
  for (std::string_view before : {": ", "missing argument "}) {
    if (const size_t at = got.rfind(before); at != got.npos) got.remove_prefix(at + before.size());
  }
  return got == field;
}

CaseResult RunRefusal(Engine& engine, Case& c) {
  Request r = c.MakeRequest();
  Status prepared = engine.Bind(r);
  if (!prepared.ok()) {
    if (IsAbout(prepared, c.refused)) return {};
    return Failed("refused for another field: " + prepared.Text());
  }
  auto report = engine.selector().Explain(r);
  if (!report.ok()) return Failed("refused for another field: " + report.status().Text());
  if (report->winner >= 0) return Failed("admitted by " + report->candidates[size_t(report->winner)].kernel->id);
  // Selection refuses: every kernel must have a reason about the field.
  for (const Candidate& candidate : report->candidates) {
    const auto about = [&](const Reason& reason) {
      if (reason.row >= candidate.kernel->rows.size()) return false;
      const std::string_view name = candidate.kernel->rows[reason.row].field_name;
      return name == c.refused || name.substr(0, name.rfind('.')) == c.refused;
    };
    if (!std::any_of(candidate.reasons.begin(), candidate.reasons.end(), about)) {
      return Failed("kernel " + candidate.kernel->id + " is refused, but not for this field");
    }
  }
  return {};
}

}  // namespace lz::verify
