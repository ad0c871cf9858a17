#include "call.h"

#include <torch/csrc/stable/stableivalue_conversions.h>

#include <optional>

#include "aten.h"
#include "bindings/profiler_event.h"
#include "engine/call.h"

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

lz_device DeviceOf(const Request& r) {
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    if (r.tensors[i].ndim >= 0) return r.tensors[i].device;
  }
  return {1, 0};
}

// A call of an operator: outputs and workspaces are torch's, Python kernels run through the engine's host.
class TorchCaller : public Caller {
 public:
  // `r` has the arguments as torch has them, before any layout was applied.
  TorchCaller(const Arguments& a, const Request& r, const HostRuntime* host) : arguments_(a), host_(host) {
    std::copy_n(r.tensors.begin(), r.op->num_inputs(), inputs_);
    listener = host ? host->listener : nullptr;
  }

  Status LayoutGuessed(const Request& r) { return host_ ? host_->guessed(r) : Status(); }

  Status BindMemory(const KernelEntry& kernel, const Transforms& transforms, Request& r) {
    BindOutputs(r);
    if (r.on_cpu()) return {};  // the engine's workspace
    const auto bytes = int64_t(WorkspaceBytes(kernel, transforms, r));
    if (bytes == 0) return {};
    workspace_ = NewTensor(&bytes, 1, DType::kU8, r.where);
    r.workspace = ViewOf(workspace_).data;
    r.workspace_bytes = uint64_t(bytes);
    return {};
  }

  template <class Run>
  Status RunNative(const KernelEntry& kernel, Request& r, Run&& run) {
    const ProfilerEvent event(kernel);
    if (r.on_cpu()) threads_ = Threads();
    if (threads_.run) r.parallel = &threads_;
    return run();
  }

  Status RunHost(const KernelEntry& kernel, const Transforms& transforms, Request& r) {
    BindOutputs(r);
    HostTensor tensors[kMaxTensors];
    const size_t inputs = r.op->num_inputs();
    for (size_t i = 0; i < inputs; ++i) tensors[i] = Lend(inputs_[i], arguments_.tensors[i]);
    for (size_t o = 0; o < r.op->num_outputs(); ++o) {
      if (outputs_[o]) tensors[inputs + o] = Lend(ViewOf(outputs_[o]), outputs_[o]);
    }
    const ProfilerEvent event(kernel);
    return Engine::Get().CallHost(kernel, transforms, r, tensors);
  }

  void Return(StableIValue* stack) {
    for (Handle& output : outputs_) {
      if (output) *stack++ = torch::stable::detail::from(output.Release());
    }
  }

 private:
  void BindOutputs(Request& r) {
    for (size_t o = 0; o < r.op->num_outputs(); ++o) {
      const OutputShape& shape = r.outputs[o];
      if (shape.ndim < 0) continue;
      if (!outputs_[o]) outputs_[o] = NewTensor(shape.physical, shape.ndim, shape.dtype, r.where);
      BindOutput(r, o, ViewOf(outputs_[o]).data);
    }
  }

  const Arguments& arguments_;
  const HostRuntime* host_;
  lz_tensor inputs_[kMaxTensors];
  Handle outputs_[kMaxOutputs];
  Handle workspace_;
  lz_parallel threads_{};
};

InlineCache& Site(size_t index) {
  static thread_local std::vector<std::unique_ptr<InlineCache>> sites;
  if (sites.size() <= index) sites.resize(index + 1);
  if (!sites[index]) sites[index] = std::make_unique<InlineCache>();
  return *sites[index];
}

}  // namespace

void CallBoxed(const TorchOp& t, size_t index, StableIValue* stack) {
  Engine& engine = Engine::Get();
  Arguments a(t, stack);
  Request r(*t.op);
  FillRequest(t, a, r);
  DrawUniform(t, a, r);
  const HostRuntime* const host = engine.host();
  if (host) Require(host->context(r));
  TorchCaller caller(a, r, host);
  r.stream = CurrentStream(DeviceOf(r));
  const Status status = RunCall(engine, r, &Site(index), caller);
  if (status.code() == StatusCode::kNoKernel) {
    auto explanation = engine.Explain(r);
    Fail(status, explanation.ok() ? std::move(*explanation) : std::string());
  }
  Require(status);
  caller.Return(stack);
}

}  // namespace lz::torch_ops
