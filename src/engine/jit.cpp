// Kernels that are compiled at their first call of a kind, for the host that compiles them.
#include "engine/engine.h"
#include "engine/json_parts.h"
#include "pipeline/filter.h"
#include "registry/classifier.h"

namespace lz {
namespace {

Json ScalarJson(const Param& p, const lz_scalar& scalar) {
  switch (p.kind) {
    case ParamKind::kBool: return scalar.value.i != 0;
    case ParamKind::kFloat: return scalar.value.f;
    case ParamKind::kChoice: return ChoiceName(p.choices, scalar.value.i);
    default: return scalar.value.i;
  }
}

// In the caller's order of axes.
Json TensorJson(const Request& r, size_t input) {
  const lz_tensor& t = r.tensors[input];
  const bool turned = r.layout > 0 && r.op->input(input).layout;
  std::vector<int64_t> shape(static_cast<size_t>(t.ndim)), strides(shape.size());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const size_t place = turned ? r.op->layouts()[size_t(r.layout)][axis] : axis;
    shape[place] = t.shape[axis];
    strides[place] = t.strides[axis];
  }
  return {{"dtype", Info(DTypeOf(t)).name}, {"shape", shape}, {"strides", strides}};
}

std::string DeviceName(const lz_device& device) { return IsCpu(device) ? "cpu" : "cuda:" + std::to_string(device.id); }

}  // namespace

Json WantedJson(const SelectionReport& report) {
  if (!report.wanted) return nullptr;
  return {{"kernel_id", report.wanted->id}, {"kind", report.wanted_kind}};
}

Json KindJson(const Request& r, const SelectionReport& report, const KernelEntry& kernel, const Device& device) {
  if (kernel.jit.when != Jit::kFirstCall) return nullptr;
  return JitKindOf(r, kernel, {device.facts, report.policy_facts});
}

Status Engine::SetJit(std::string_view operation, std::string_view kernel, const JitKind& kind, bool ready) {
  const KernelEntry* const entry = selector_.registry().FindKernel(operation, kernel);
  if (!entry) {
    return Status(
        StatusCode::kUnknownName,
        {.field = "kernel", .wanted = "a kernel of " + std::string(operation), .got = "'" + std::string(kernel) + "'"});
  }
  selector_.registry().SetJit(*entry, kind, ready);
  selector_.Invalidate(EpochKind::kCapabilities);
  return {};
}

std::string Engine::CallText(const Request& r) const {
  Json tensors = Json::object(), scalars = Json::object();
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    if (r.tensors[i].ndim >= 0) tensors[std::string(r.op->input(i).name)] = TensorJson(r, i);
  }
  for (size_t i = 0; i < r.op->num_scalars(); ++i) {
    const Param& p = r.op->scalar(i);
    if (r.scalars[i].given) scalars[std::string(p.name)] = ScalarJson(p, r.scalars[i]);
  }
  Json j = {{"operation", r.op->name()}, {"device", DeviceName(r.where)}, {"tensors", tensors}, {"scalars", scalars}};
  if (!r.op->layout_names().empty()) j["layout"] = r.op->layout_names()[size_t(r.layout)];
  return Dump(j);
}

}  // namespace lz
