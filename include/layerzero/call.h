// One call of an operation from C++: named arguments, bound once, run any number of times.
#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "layerzero/c_abi.h"
#include "layerzero/status.h"
#include "layerzero/tensor_ref.h"

namespace layerzero {

// One named argument of a call. The name and, for a choice, its text are borrowed.
struct Arg {
  Arg(std::string_view n, TensorRef v) : name(n), value(v) {}
  Arg(std::string_view n, bool v) : name(n), value(v) {}
  Arg(std::string_view n, const char* choice) : name(n), value(std::string_view(choice)) {}
  template <class T>
  requires std::is_integral_v<T> Arg(std::string_view n, T v) : name(n), value(int64_t(v)) {}
  template <class T>
  requires std::is_floating_point_v<T> Arg(std::string_view n, T v) : name(n), value(double(v)) {}

  std::string_view name;
  std::variant<TensorRef, int64_t, double, bool, std::string_view> value;
};
using Args = std::initializer_list<Arg>;

// A call with its arguments bound. One thread at a time may use it.
class Call {
 public:
  // Replaces one argument. After an error the call is unchanged.
  Status Set(const Arg& arg) {
    const auto at = [&](const lz_param* params, size_t n) {
      size_t i = 0;
      while (i < n && arg.name != params[i].name) ++i;
      return i;
    };
    if (const size_t i = at(info_->tensors, tensors_.size()); i < tensors_.size()) {
      const TensorRef* tensor = std::get_if<TensorRef>(&arg.value);
      if (!tensor) return Wrong(arg, "a tensor");
      tensors_[i] = *tensor;
      return {};
    }
    if (const size_t i = at(info_->scalars, scalars_.size()); i < scalars_.size()) return SetScalar(i, arg);
    return Wrong(arg, "a parameter or output of the operation");
  }
  template <class T>
  Status Set(std::string_view name, T value) {
    return Set(Arg(name, value));
  }

  Status Run() {
    const lz_request request = Request();
    return Check(site_ ? api_->site_run(site_.get(), &request) : api_->run(&request));
  }
  // The kernel that Run would run now.
  Result<std::string> KernelId() {
    const lz_plan* plan = nullptr;
    if (Status status = Plan(&plan); !status.ok()) return status;
    return std::string(api_->plan_kernel_id(plan));
  }
  // Bytes of workspace that Run needs. On the CPU the engine allocates them itself unless SetWorkspace was called.
  Result<uint64_t> WorkspaceBytes() {
    const lz_plan* plan = nullptr;
    if (Status status = Plan(&plan); !status.ok()) return status;
    const lz_request request = Request();
    return api_->workspace_bytes(plan, &request);
  }
  void SetWorkspace(void* data, uint64_t bytes) { workspace_ = data, workspace_bytes_ = bytes; }  // 64-byte aligned
  void SetStream(void* stream) { stream_ = stream; }
  void SetPolicy(int64_t policy) { policy_ = policy; }  // an id from Api::PolicyScope
  void SetFlags(uint32_t flags) { flags_ = flags; }     // LZ_FLAG_*

  // Shape and dtype to allocate for an output, given the inputs that are set. Absent if the call does not produce it.
  Result<TensorRef> OutputShape(std::string_view name) {
    std::vector<std::array<int64_t, TensorRef::kMaxRank>> shapes(info_->num_outputs);
    std::vector<lz_tensor> outputs(info_->num_outputs);
    for (size_t o = 0; o < outputs.size(); ++o) outputs[o].shape = shapes[o].data();
    const lz_request request = Request();
    if (Status s = Check(api_->output_shapes(&request, outputs.data(), outputs.size())); !s.ok()) return s;
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (name == info_->tensors[info_->num_inputs + o].name) return TensorRef::FromDLPack(outputs[o]);
    }
    return Status(LZ_UNKNOWN_NAME, std::string(info_->name), "an output of the operation", std::string(name));
  }
  // Every kernel with its score or the reasons against it, as JSON. `device`: "" for that of the tensors;
  // "h100": simulated.
  Result<std::string> Explain(const std::string& device = {}) {
    const lz_request request = Request();
    const char* json = nullptr;
    if (Status s = Check(api_->explain(&request, device.empty() ? nullptr : device.c_str(), &json)); !s.ok()) return s;
    return std::string(json);
  }

 private:
  friend class Operation;
  struct FreeSite {
    const lz_api* api;
    void operator()(lz_site* site) const { api->site_free(site); }
  };

  Call(const lz_api* api, const lz_op* op, const lz_op_info* info, bool with_site)
      : api_(api),
        op_(op),
        info_(info),
        tensors_(info->num_inputs + info->num_outputs),
        views_(tensors_.size()),
        scalars_(info->num_scalars),
        site_(with_site ? api->site_new() : nullptr, FreeSite{api}) {}

  Status Check(int32_t code) const { return code == LZ_OK ? Status() : Status(*api_->last_error()); }
  Status Wrong(const Arg& arg, const char* wanted) const {
    static constexpr const char* kGot[] = {"a tensor", "an integer", "a float", "a bool", "a text"};
    return {LZ_WRONG_TYPE, std::string(info_->name) + ": " + std::string(arg.name), wanted, kGot[arg.value.index()]};
  }
  Status SetScalar(size_t i, const Arg& arg);
  Status Plan(const lz_plan** plan) {
    const lz_request request = Request();
    return Check(site_ ? api_->site_select(site_.get(), &request, plan) : api_->select(&request, plan));
  }
  lz_request Request() {
    for (size_t i = 0; i < tensors_.size(); ++i) views_[i] = tensors_[i].View();
    lz_request request{};
    request.size = sizeof(request);
    request.flags = flags_;
    request.policy = policy_;
    request.op = op_;
    request.tensors = views_.data();
    request.scalars = scalars_.data();
    request.stream = stream_;
    request.workspace = workspace_;
    request.workspace_bytes = workspace_bytes_;
    return request;
  }

  const lz_api* api_;
  const lz_op* op_;
  const lz_op_info* info_;
  std::vector<TensorRef> tensors_;
  std::vector<lz_tensor> views_;
  std::vector<lz_scalar> scalars_;
  std::unique_ptr<lz_site, FreeSite> site_;
  void* stream_ = nullptr;
  void* workspace_ = nullptr;
  uint64_t workspace_bytes_ = 0;
  int64_t policy_ = 0;
  uint32_t flags_ = 0;
};

inline Status Call::SetScalar(size_t i, const Arg& arg) {
  const lz_param& param = info_->scalars[i];
  lz_scalar scalar{};
  scalar.given = 1;
  const int64_t* integer = std::get_if<int64_t>(&arg.value);
  if (param.kind == LZ_FLOAT) {
    const double* number = std::get_if<double>(&arg.value);
    if (!number && !integer) return Wrong(arg, "a number");
    scalar.value.f = number ? *number : double(*integer);
  } else if (param.kind == LZ_INT) {
    if (!integer) return Wrong(arg, "an integer");
    scalar.value.i = *integer;
  } else if (param.kind == LZ_BOOL) {
    const bool* flag = std::get_if<bool>(&arg.value);
    if (!flag) return Wrong(arg, "a bool");
    scalar.value.i = *flag;
  } else {
    const std::string_view* text = std::get_if<std::string_view>(&arg.value);
    if (!text) return Wrong(arg, param.choices);
    for (std::string_view rest = param.choices; rest.substr(0, rest.find('|')) != *text; ++scalar.value.i) {
      if (rest.find('|') == rest.npos) return Wrong(arg, param.choices);
      rest.remove_prefix(rest.find('|') + 1);
    }
  }
  scalars_[i] = scalar;
  return {};
}

}  // namespace layerzero
