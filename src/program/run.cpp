#include "program/run.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/view.h"
#include "engine/call.h"
#include "pipeline/dispatch.h"
#include "pipeline/request_memory.h"
#include "pipeline/transform.h"
#include "program/check.h"

namespace lz {
namespace {

using Kind = ProgramValue::Kind;
constexpr uintptr_t kAlignmentMask = 127;  // the bits of an address that facts depend on

// True if the tensors have the same facts.
bool SameFacts(const lz_tensor& from, const lz_tensor& to) {
  if (from.ndim != to.ndim) return false;
  if (from.ndim < 0) return true;
  const auto address = [](const lz_tensor& t) { return reinterpret_cast<uintptr_t>(t.data) + t.byte_offset; };
  return ((address(from) ^ address(to)) & kAlignmentMask) == 0 &&
         std::equal(to.shape, to.shape + to.ndim, from.shape) &&
         std::equal(to.strides, to.strides + to.ndim, from.strides) && DTypeOf(from) == DTypeOf(to);
}

bool TakesStridedOutputs(const KernelEntry& kernel, const Transforms& transforms) {
  const KernelSpec& spec = kernel.spec;
  return spec.call == CallKind::kNative && spec.strides != Strides::kContiguous && transforms.outputs == 0;
}
// What keeps a tensor alive that a host kernel borrowed: the arena, and the arguments of the run.
struct Lent {
  Lent(std::shared_ptr<Arena> memory, const RunArguments& a)
      : arena(std::move(memory)), owner(a.owner), calls(a.owner_calls) {
    if (calls) calls->retain(owner);
  }
  static void Release(void* self) {
    auto* lent = static_cast<Lent*>(self);
    if (lent->calls) lent->calls->release(lent->owner);
    delete lent;
  }
  std::shared_ptr<Arena> arena;
  void* owner;
  const RunOwner* calls;
};

}  // namespace

bool TakesStridedOutputs(const Plan& plan) { return TakesStridedOutputs(*plan.kernel, plan.transforms); }

ProgramRun::ProgramRun(const Program& program) : program_(program) {
  steps_.reserve(program.steps().size());
  for (const ProgramStep& what : program.steps()) {
    Step& step = steps_.emplace_back(what);
    for (const auto* operands : {&what.inputs, &what.outputs}) {
      for (const Operand& o : *operands) {
        if (o.value < 0) continue;
        const Kind kind = program.values()[size_t(o.value)].kind;
        step.steady = step.steady && (kind == Kind::kWeight || kind == Kind::kRows);
      }
    }
  }
}

lz_tensor ProgramRun::View(const Operand& operand, int64_t* sizes) const {
  if (operand.value < 0) return AbsentTensor();
  const RunArguments& a = *arguments_;
  const ProgramValue& value = program_.values()[size_t(operand.value)];
  const size_t index = size_t(program_.index_of_kind(operand.value));
  if (value.kind == Kind::kWeight) return value.weight;
  if (value.kind == Kind::kInput) return a.inputs[index];
  return value.kind == Kind::kCache ? CacheView(operand, a.caches[index], sizes)
                                    : RowsView(operand, value, index, sizes);
}

lz_tensor ProgramRun::RowsView(const Operand& operand, const ProgramValue& value, size_t index, int64_t* sizes) const {
  const RunArguments& a = *arguments_;
  const DTypeInfo& dtype = Info(value.dtype);
  lz_tensor t{};
  t.device = {1, 0};
  t.dtype = {dtype.dlpack_code, dtype.bits, dtype.lanes};
  if (value.kind == Kind::kRows) {
    t.data = memory_ + program_.place(operand.value) * a.batch * a.length;
  } else {
    t.data = a.outputs[index].data;
    t.byte_offset = a.outputs[index].byte_offset;
  }
  t.byte_offset += uint64_t(operand.column * ItemSize(t));
  const size_t leading = operand.packed ? 1 : 2;
  t.ndim = int32_t(leading + operand.axes.size());
  t.shape = sizes;
  t.strides = sizes + kMaxRank;
  t.shape[0] = a.batch, t.strides[0] = a.length * value.width;
  t.shape[leading - 1] = operand.packed ? a.batch * a.length : a.length;
  t.strides[leading - 1] = value.width;
  int64_t stride = 1;
  for (size_t d = operand.axes.size(); d-- > 0;) {
    t.shape[leading + d] = operand.axes[d];
    t.strides[leading + d] = stride;
    stride *= operand.axes[d];
  }
  if (operand.step) t.strides[leading] = operand.step;
  return t;
}

// CheckArguments has verified that it has the operand's axes.
lz_tensor ProgramRun::CacheView(const Operand& operand, const lz_tensor& given, int64_t* sizes) const {
  const RunArguments& a = *arguments_;
  lz_tensor t = given;
  t.shape = sizes;
  t.strides = sizes + kMaxRank;
  std::copy_n(given.shape, given.ndim, t.shape);
  std::copy_n(given.strides, given.ndim, t.strides);
  t.shape[1] = operand.past ? a.past + a.length : a.length;
  if (!operand.past) t.byte_offset += uint64_t(a.past * t.strides[1] * ItemSize(t));
  return t;
}

// Sets the tensors of this run. Returns true if the facts of the previous ones hold.
bool ProgramRun::SetInputs(const ProgramStep& what, Step& step) {
  bool same = true;
  for (size_t i = 0; i < what.inputs.size(); ++i) {
    std::array<int64_t, 2 * kMaxRank> sizes;
    lz_tensor t = View(what.inputs[i], sizes.data());
    lz_tensor& in = step.request.tensors[i];
    if (SameFacts(in, t)) {
      in.data = t.data;
      in.byte_offset = t.byte_offset;
      continue;
    }
    same = false;
    in = t;
    if (t.ndim <= 0) continue;
    std::copy_n(t.shape, t.ndim, step.sizes[i].data());  // inputs and weights too: the tensors of a run do not stay
    std::copy_n(t.strides, t.ndim, step.sizes[i].data() + kMaxRank);
    in.shape = step.sizes[i].data();
    in.strides = in.shape + kMaxRank;
  }
  return same;
}

// Allocates memory for this run's rows, so that every tensor has its address.
Status ProgramRun::Begin(const RunArguments& arguments) {
  arguments_ = &arguments;
  missed_by_ = nullptr;
  const int64_t rows = arguments.batch * arguments.length;
  const int64_t bytes = program_.ArenaBytes(rows) + program_.SpareBytes(rows);
  if (arena_.use_count() > 1) arena_ = std::make_shared<Arena>();  // lent in the last run, and still held
  memory_ = static_cast<char*>(arena_->Get(size_t(bytes)));
  const Place place{memory_, arguments.batch, arguments.length, arguments.policy,
                    program_.engine().epochs().Generation()};
  if (place != place_) ++num_places_;
  place_ = place;
  if (memory_ || bytes == 0) return {};
  return Status(StatusCode::kKernelFailed, {.field = "program: memory",
                                            .wanted = std::to_string(bytes) + " bytes",
                                            .got = "none",
                                            .fix = "run fewer rows at once"});
}

Result<Request*> ProgramRun::Fill(const RunArguments& arguments, size_t index) {
  LZ_RETURN_IF_ERROR(Begin(arguments));
  Step& step = steps_[index];
  const ProgramStep& what = program_.steps()[index];
  SetInputs(what, step);
  std::copy(what.scalars.begin(), what.scalars.end(), step.request.scalars.begin());
  step.request.policy = arguments.policy;
  step.request.device = -1;
  return &step.request;
}

// The weights have evicted every step's request from the caches; the previous step hides the latency of this prefetch.
void ProgramRun::Prefetch(size_t index) const {
  if (index >= steps_.size()) return;
  const Step& step = steps_[index];
  const auto lines = [](const void* from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at);
  };
  const size_t tensors = program_.steps()[index].inputs.size() + program_.steps()[index].outputs.size();
  lines(step.request.tensors.data(), tensors * sizeof(lz_tensor));
  lines(step.sizes.data(), tensors * sizeof(step.sizes[0]));
  lines(&step.request.scalars, sizeof(step.request.scalars));
  lines(&step.request.variables, 2 * 64);
  lines(&step.plan, 64);
}

Status ProgramRun::BindStep(const ProgramStep& what, Step& step, bool select) {
  if (step.steady && step.bound == num_places_) return {};
  Request& r = step.request;
  if (!SetInputs(what, step) || step.policy != arguments_->policy || !step.plan) {
    std::copy(what.scalars.begin(), what.scalars.end(), r.scalars.begin());  // binding resolves them
    r.policy = arguments_->policy;
    r.device = -1;
    step.plan = nullptr;
    LZ_RETURN_IF_ERROR(program_.engine().Bind(r));
  }
  Selector& selector = program_.engine().selector();
  const bool missed = std::exchange(missed_by_, nullptr) == &step;  // by the team, just now
  if (!missed) step.plan = selector.Lookup(r, step.site, &missed_);
  if (!step.plan) {
    if (!select) {
      missed_by_ = &step;
      return {};
    }
    auto plan = selector.Select(r, step.site, missed_);
    if (!plan.ok()) return plan.TakeStatus();
    step.plan = *plan;
    if (arguments_->listener) arguments_->listener->selected(*step.plan, r);
  }
  step.policy = arguments_->policy;
  LZ_RETURN_IF_ERROR(SetOutputs(what, step));
  step.bound = step.site.plan ? num_places_ : 0;  // 0: the choice was for this run only
  return {};
}

Status ProgramRun::SetOutputs(const ProgramStep& what, Step& step) {
  Request& r = step.request;
  const size_t inputs = what.inputs.size();
  step.copied = 0;
  for (size_t o = 0; o < what.outputs.size(); ++o) {
    const OutputShape& shape = r.outputs[o];
    lz_tensor t = View(what.outputs[o], step.sizes[inputs + o].data());
    const bool fits = t.ndim == shape.ndim &&
                      (t.ndim < 0 || (DTypeOf(t) == shape.dtype && std::equal(t.shape, t.shape + t.ndim, shape.shape)));
    if (!fits) {
      const std::string name = std::string(r.op->name()) + ": " + std::string(r.op->contract().outputs[o].name);
      const auto text = [](int32_t ndim, const int64_t* sizes, DType dtype) {
        return ndim < 0 ? "nothing" : ShapeText({sizes, size_t(ndim)}, dtype);
      };
      return WrongProgram(name, text(shape.ndim, shape.shape, shape.dtype), text(t.ndim, t.shape, DTypeOf(t)));
    }
    r.tensors[inputs + o] = t;
    if (t.ndim < 0 || IsDense(t) || TakesStridedOutputs(*step.plan)) continue;
    step.copied |= 1u << o;
  }
  return {};
}

Status ProgramRun::Bind(const RunArguments& arguments) {
  LZ_RETURN_IF_ERROR(Begin(arguments));
  for (size_t s = 0; s < steps_.size(); ++s) LZ_RETURN_IF_ERROR(BindStep(program_.steps()[s], steps_[s]));
  return {};
}

// `copied` outputs go through memory after the arena's values.
template <class Call>
Status ProgramRun::RunStep(Step& step, Call&& call) {
  Request& r = step.request;
  std::array<lz_tensor, kMaxOutputs> wanted;
  const size_t inputs = r.op->num_inputs();
  char* spare = memory_ + program_.ArenaBytes(arguments_->batch * arguments_->length);
  for (size_t o = 0; step.copied >> o; ++o) {
    if (!(step.copied >> o & 1)) continue;
    wanted[o] = r.tensors[inputs + o];
    BindOutput(r, o, spare);
    spare += AlignWorkspace(OutputBytes(r.outputs[o]));
  }
  Status status = call();
  for (size_t o = 0; step.copied >> o; ++o) {
    if (!(step.copied >> o & 1)) continue;
    if (status.ok()) CopyStrided(r.tensors[inputs + o], wanted[o]);
    r.tensors[inputs + o] = wanted[o];
  }
  return status;
}

// A step of a run: its memory is bound, and the tensors that a host kernel borrows keep the run's memory alive.
struct ProgramRun::StepCaller : Caller {
  explicit StepCaller(ProgramRun& owner) : run(owner) {
    listener = owner.arguments_->listener;
    profiled = listener && listener->profiled && listener->profiled();
  }
  template <class Run>
  Status RunNative(const KernelEntry& kernel, Request&, Run&& call) {
    return Profiled(kernel, call);
  }
  Status RunHost(const KernelEntry& kernel, const Transforms& transforms, Request& r) {
    HostTensor tensors[kMaxTensors];
    for (size_t i = 0; i < r.op->num_inputs() + r.op->num_outputs(); ++i) {
      if (r.tensors[i].ndim < 0) continue;
      tensors[i] = {.view = r.tensors[i], .owner = new Lent(run.arena_, *run.arguments_), .release = &Lent::Release};
    }
    return Profiled(kernel, [&] { return run.program_.engine().CallHost(kernel, transforms, r, tensors); });
  }
  template <class Run>
  Status Profiled(const KernelEntry& kernel, Run&& call) {
    if (!profiled) [[likely]]
      return call();
    void* const event = listener->began(kernel);
    Status status = call();
    listener->ended(event);
    return status;
  }
  ProgramRun& run;
  bool profiled;
};

// Runs native steps from *step on, which is bound, by one team. kHostKernel: *step is bound and is for the host
// language. Ok before the last step: *step has no plan; choosing one may import a library, which is for the
// caller's thread.
Status ProgramRun::RunTogether(size_t* step, StepCaller& caller) {
  Engine& engine = program_.engine();
  const size_t bound = *step;  // if selections are not kept, binding it here again finds no plan
  Status status;
  const lz_parallel& pool = arguments_->parallel ? *arguments_->parallel : engine.selector().parallel();
  team_.Run(pool, [&] {
    const lz_parallel parallel = team_.AsParallel();
    for (; *step < steps_.size(); ++*step) {
      Step& s = steps_[*step];
      Prefetch(*step + 1);
      if (*step != bound) status = BindStep(program_.steps()[*step], s, false);
      if (!status.ok() || !s.plan || IsHost(*s.plan->kernel)) return;
      s.request.parallel = &parallel;
      s.request.fell_back = false;
      status = RunStep(s, [&] { return RunNativeKernel(engine, *s.plan, s.request, caller); });
      if (!status.ok()) return;
    }
  });
  return status;
}

// The next kernel may need dense outputs where the plan's did not.
Status ProgramRun::RunAfterFailure(Step& step, StepCaller& caller, Status first) {
  const size_t inputs = step.request.op->num_inputs();
  for (size_t o = 0; o < step.request.op->num_outputs(); ++o) {
    const lz_tensor& t = step.request.tensors[inputs + o];
    if (t.ndim >= 0 && !IsDense(t)) step.copied |= 1u << o;
  }
  return RunStep(step,
                 [&] { return RunOthers(program_.engine(), *step.plan, step.request, caller, std::move(first)); });
}

Status ProgramRun::Run(const RunArguments& arguments) {
  LZ_RETURN_IF_ERROR(Begin(arguments));
  Engine& engine = program_.engine();
  StepCaller caller(*this);
  const bool on_this_thread = caller.profiled || ObservedOnCallersThread();  // no team leads on a thread of its own
  for (size_t s = 0; s < steps_.size();) {
    LZ_RETURN_IF_ERROR(BindStep(program_.steps()[s], steps_[s]));
    Status status;
    if (!on_this_thread && !IsHost(*steps_[s].plan->kernel)) {
      status = RunTogether(&s, caller);
      if (status.ok() && (s == steps_.size() || !steps_[s].plan)) continue;
      if (!status.ok() && steps_[s].request.outcome == Outcome::kDone) return status;
    }
    Step& step = steps_[s++];
    step.request.parallel = arguments_->parallel;
    if (status.ok()) {
      step.request.fell_back = false;
      status = RunStep(step, [&] { return RunKernelOf(engine, *step.plan, step.request, caller); });
    }
    if (!status.ok()) LZ_RETURN_IF_ERROR(RunAfterFailure(step, caller, std::move(status)));
  }
  return {};
}

}  // namespace lz
