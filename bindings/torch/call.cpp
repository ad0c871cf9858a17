#include "call.h"

#include <torch/csrc/stable/stableivalue_conversions.h>

#include <optional>

#include "aten.h"
#include "bindings/profiler_event.h"

namespace lz::torch_ops {
namespace {

using torch::stable::detail::to;

std::string TakeString(StableIValue value) {
  auto* handle = to<StringHandle>(value);
  const char* data = nullptr;
  size_t length = 0;
  std::string text;
  if (torch_string_c_str(handle, &data) == 0 && torch_string_length(handle, &length) == 0) text.assign(data, length);
  torch_delete_string(handle);
  return text;
}

// The arguments of one call. Everything on the stack is owned from the start: a refusal must not leak the rest.
struct Arguments {
  Handle tensors[kMaxTensors];                      // by tensor parameter
  lz_scalar scalars[kMaxScalars] = {};              // by scalar parameter
  std::optional<std::string> choices[kMaxScalars];  // strings, not looked up yet
  std::string layout;

  Arguments(const TorchOp& t, StableIValue* stack) {
    const Operation& op = *t.op;
    size_t input_of[256] = {}, scalar_of[256] = {};
    for (size_t i = 0; i < op.num_inputs(); ++i) input_of[op.input_params()[i]] = i;
    for (size_t i = 0; i < op.num_scalars(); ++i) scalar_of[op.scalar_params()[i]] = i;
    size_t next = 0;
    for (uint8_t index : t.arguments) {
      const Param& p = op.contract().params[index];
      const StableIValue value = stack[next++];
      if (p.kind == ParamKind::kTensor) {
        const bool required = !p.optional || index == op.output_condition();
        const auto raw = !required ? to<std::optional<AtenTensorHandle>>(value) : to<AtenTensorHandle>(value);
        if (raw) tensors[input_of[index]] = Handle(*raw);
      } else {
        Scalar(p, value, scalar_of[index]);
      }
    }
    if (t.layout) layout = TakeString(stack[next]);
    const int flag = op.output_condition();
    if (flag < 0 || op.contract().params[size_t(flag)].kind != ParamKind::kBool) return;
    lz_scalar& fixed = scalars[scalar_of[flag]];
    if (t.condition && !fixed.value.i) {
      Fail(Status(StatusCode::kInvalidRequest,
                  {.field = std::string(op.name()) + ": " + std::string(op.contract().params[size_t(flag)].name),
                   .wanted = "True for the overload '" + t.overload + "'",
                   .got = "False",
                   .fix = "call the default overload"}));
    }
    fixed = {.value = {.i = t.condition}, .given = 1};
  }

  void Scalar(const Param& p, StableIValue value, size_t i) {
    if (p.optional && !p.has_default) {
      const auto inner = to<std::optional<StableIValue>>(value);
      if (!inner) return;
      value = *inner;
    }
    scalars[i].given = 1;
    switch (p.kind) {
      case ParamKind::kFloat: scalars[i].value.f = to<double>(value); break;
      case ParamKind::kBool: scalars[i].value.i = to<bool>(value); break;
      case ParamKind::kChoice: choices[i] = TakeString(value); break;
      default: scalars[i].value.i = to<int64_t>(value); break;
    }
  }
};

int64_t ChoiceOf(const Operation& op, const Param& p, std::string_view wanted) {
  if (const int64_t i = ChoiceIndex(p.choices, wanted); i >= 0) return i;
  Fail(Status(StatusCode::kInvalidRequest, {.field = std::string(op.name()) + ": " + std::string(p.name),
                                            .wanted = "one of " + std::string(p.choices),
                                            .got = "'" + std::string(wanted) + "'"}));
}

int32_t LayoutIndex(const Operation& op, std::string_view wanted) {
  if (wanted.empty()) return kDetectLayout;  // traced from a call that named none
  std::string known;
  for (size_t i = 0; i < op.layout_names().size(); ++i) {
    if (op.layout_names()[i] == wanted) return int32_t(i);
    known += (known.empty() ? "" : " or ") + op.layout_names()[i];
  }
  Fail(Status(StatusCode::kInvalidRequest,
              {.field = std::string(op.name()) + ": layout", .wanted = known, .got = "'" + std::string(wanted) + "'"}));
}

void FillRequest(const TorchOp& t, Arguments& a, Request& r) {
  const Operation& op = *t.op;
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    if (a.tensors[i]) r.tensors[i] = ViewOf(a.tensors[i]);
  }
  for (size_t i = 0; i < op.num_scalars(); ++i) {
    r.scalars[i] = a.scalars[i];
    if (a.choices[i]) r.scalars[i].value.i = ChoiceOf(op, op.scalar(i), *a.choices[i]);
  }
  if (t.layout) r.layout = LayoutIndex(op, a.layout);
}

// `uniform` of a call without a seed, as torch.rand draws it: from the default generator of the tensors' device.
void DrawUniform(const TorchOp& t, Arguments& a, Request& r) {
  const auto& draws = t.draws;
  if (!draws || r.scalars[draws->seed].given || r.scalars[draws->offset].value.i != 0) return;
  const lz_tensor& rows = r.tensors[draws->rows];
  if (a.tensors[draws->uniform] || rows.ndim < 1 || rows.ndim > kMaxRank) return;
  int64_t shape[kMaxRank + 1];
  const int32_t ndim = draws->Shape(rows, shape);
  Handle& uniform = a.tensors[draws->uniform] = NewTensor(shape, ndim, DType::kF64, rows.device);
  FillUniform(uniform);
  r.tensors[draws->uniform] = ViewOf(uniform);
}

void Require(const Status& status) {
  if (!status.ok()) Fail(status);
}

HostTensor Lend(const lz_tensor& view, const Handle& tensor) {
  if (!tensor) return {};
  return {.view = view, .owner = Share(tensor), .release = [](void* owner) {
            aoti_torch_delete_tensor_object(static_cast<AtenTensorHandle>(owner));
          }};
}

// A kernel of the host language. `inputs`: the arguments as torch has them, before any layout was applied.
Status CallHost(const KernelEntry& kernel, const Transforms& transforms, const Request& r, const lz_tensor* inputs,
                const Arguments& a, const Handle* outputs) {
  const HostRuntime* host = Engine::Get().host();
  if (!host) {
    Fail(Status(StatusCode::kNotInstalled, {.field = std::string(r.op->name()) + ": " + kernel.id,
                                            .wanted = "`import layerzero` for a Python kernel",
                                            .got = "none"}));
  }
  HostTensor tensors[kMaxTensors];
  for (size_t i = 0; i < r.op->num_inputs(); ++i) tensors[i] = Lend(inputs[i], a.tensors[i]);
  for (size_t o = 0; o < r.op->num_outputs(); ++o) {
    if (outputs[o]) tensors[r.op->num_inputs() + o] = Lend(ViewOf(outputs[o]), outputs[o]);
  }
  return host->call(kernel, r, transforms, tensors);
}

lz_device DeviceOf(const Request& r) {
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    if (r.tensors[i].ndim >= 0) return r.tensors[i].device;
  }
  return {1, 0};
}

// A plan's workspace on a device, from torch's allocator for the current stream; the engine has its own on the CPU.
Handle MakeWorkspace(const Plan& plan, Request& r) {
  const int64_t bytes = r.where.type == 1 ? 0 : int64_t(Engine::Get().WorkspaceBytes(plan, r));
  if (bytes == 0) return Handle();
  Handle memory = NewTensor(&bytes, 1, DType::kU8, r.where);
  r.workspace = ViewOf(memory).data;
  r.workspace_bytes = uint64_t(bytes);
  return memory;
}

Box& Site(size_t index) {
  static thread_local std::vector<std::unique_ptr<Box>> sites;
  if (sites.size() <= index) sites.resize(index + 1);
  if (!sites[index]) sites[index] = std::make_unique<Box>();
  return *sites[index];
}

}  // namespace

void CallBoxed(const TorchOp& t, size_t index, StableIValue* stack) {
  Engine& engine = Engine::Get();
  const Operation& op = *t.op;
  Arguments a(t, stack);
  Request r(op);
  FillRequest(t, a, r);
  DrawUniform(t, a, r);
  lz_tensor inputs[kMaxTensors];
  std::copy(r.tensors.begin(), r.tensors.begin() + ptrdiff_t(op.num_inputs()), inputs);
  const HostRuntime* const host = engine.host();
  const RunListener* const listener = host ? host->listener : nullptr;
  if (host) Require(host->context(r));
  r.stream = CurrentStream(DeviceOf(r));
  Require(engine.Prepare(r));
  if (r.layout_guessed && host) Require(host->guessed(r));
  const Plan* plan = engine.Lookup(Site(index), r.facts);
  if (!plan) {
    auto selected = engine.Select(r, Site(index));
    if (!selected.ok()) {
      auto explanation = engine.Explain(r);
      Fail(selected.status(), explanation.ok() ? std::move(*explanation) : std::string());
    }
    plan = *selected;
    if (listener) listener->selected(*plan, r);
  }

  Handle outputs[kMaxOutputs];
  for (size_t o = 0; o < op.num_outputs(); ++o) {
    const OutputShape& shape = r.outputs[o];
    if (shape.ndim < 0) continue;
    outputs[o] = NewTensor(shape.physical, shape.ndim, shape.dtype, r.where);
    Engine::BindOutput(r, o, ViewOf(outputs[o]).data);
  }
  const Plan& p = *plan;
  const lz_parallel threads = r.where.type == 1 ? Threads() : lz_parallel{};
  if (threads.run) r.parallel = &threads;
  const bool native = p.kernel->spec.call == CallKind::kNative;
  const Handle workspace = native ? MakeWorkspace(p, r) : Handle();
  const ProfilerEvent event(*p.kernel);
  if (!native) p.CountCall();
  const bool timed = listener && listener->starts;
  if (timed) [[unlikely]]
    listener->starts(r);
  Status status = native ? engine.Run(p, r) : CallHost(*p.kernel, p.transforms, r, inputs, a, outputs);
  if (native && status.code() == StatusCode::kHostKernel && p.fallback) {
    status = CallHost(*p.fallback, p.fallback_transforms, r, inputs, a, outputs);
  } else if (!native && Engine::MayFallBack(p, r, status)) {
    Status answered = engine.RunFallback(p, r);
    if (answered.code() == StatusCode::kHostKernel) {
      answered = CallHost(*p.fallback, p.fallback_transforms, r, inputs, a, outputs);
    }
    status = Engine::OutcomeOf(std::move(status), std::move(answered));
  }
  Require(status);
  if (timed) [[unlikely]]
    listener->ended(p, r);
  if (r.fell_back && listener) listener->fell_back(p, r);
  size_t next = 0;
  for (Handle& output : outputs) {
    if (output) stack[next++] = torch::stable::detail::from(output.Release());
  }
}

}  // namespace lz::torch_ops
