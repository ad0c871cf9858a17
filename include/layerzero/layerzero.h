// LayerZero from C++20: operations by name over caller-owned memory. Header only, over the C ABI; throws
// nothing itself.
//
//   namespace lz = layerzero;
//   auto api = lz::Api::Get();                                // Result<Api>
//   auto rms = api->Find("rms_norm");                         // Result<Operation>
//   lz::TensorRef x(px, {4, 4096}), w(pw, {4096}), out(pout, {4, 4096});
//   lz::Status status = (*rms)({{"input", x}, {"weight", w}, {"eps", 1e-5}, {"output", out}});
//   if (!status.ok()) std::puts(status.text().c_str());
//
// In a loop, prepare once and run many times: names are resolved once, the kernel is selected once per class of calls,
// and only what changes is set:
//
//   auto call = rms->Prepare({{"input", x}, {"weight", w}, {"output", out}});
//   for (...) { call->Set("input", next); status = call->Run(); }
//
// Parameters and outputs have the names of the contract (Api::Contracts(), or the operation's page). An omitted
// argument is absent or has its default. Tensors are borrowed for the duration of a call.
#pragma once

#include <string>
#include <string_view>

#include "layerzero/c_abi.h"
#include "layerzero/call.h"
#include "layerzero/status.h"
#include "layerzero/tensor_ref.h"

namespace layerzero {

// An operation by name. Copies are cheap; any thread may use it.
class Operation {
 public:
  std::string_view name() const { return info_->name; }
  const lz_op_info& info() const { return *info_; }

  // Prepares a call to be run many times; it has its own call site cache.
  Result<Call> Prepare(Args args) const { return Bind(args, true); }
  // Runs one call.
  Status operator()(Args args, void* stream = nullptr) const {
    Result<Call> call = Bind(args, false);
    if (!call.ok()) return call.status();
    call->SetStream(stream);
    return call->Run();
  }
  Result<std::string> Explain(Args args, const std::string& device = {}) const {
    Result<Call> call = Bind(args, false);
    if (!call.ok()) return call.status();
    return call->Explain(device);
  }

 private:
  friend class Api;
  Operation(const lz_api* api, const lz_op* op) : api_(api), op_(op), info_(api->op_info(op)) {}
  Result<Call> Bind(Args args, bool with_site) const {
    Call call(api_, op_, info_, with_site);
    for (const Arg& arg : args) {
      if (Status status = call.Set(arg); !status.ok()) return status;
    }
    return call;
  }

  const lz_api* api_;
  const lz_op* op_;
  const lz_op_info* info_;
};

// The engine of this process.
class Api {
 public:
  static Result<Api> Get() {
    const lz_api* api = lz_get_api(LZ_ABI_MAJOR, sizeof(lz_api));
    if (api) return Api(api);
    return Status(LZ_VERSION_MISMATCH, "liblayerzero.so", "the ABI that this program was built for", "another one",
                  "install the library and the headers of one release");
  }

  Result<Operation> Find(const std::string& name) const {
    const lz_op* op = nullptr;
    if (Status status = Check(api_->find(name.c_str(), &op)); !status.ok()) return status;
    return Operation(api_, op);
  }
  const char* version() const { return api_->version; }
  const char* build_id() const { return api_->build_id; }
  std::string Contracts() const { return api_->contracts(); }  // JSON
  Status Configure(const std::string& json) const { return Check(api_->configure(json.c_str())); }
  Status LoadConfig(const std::string& path) const { return Check(api_->load_config(path.c_str())); }
  Result<int64_t> PolicyScope(const std::string& json, int64_t parent = 0) const {
    int64_t id = 0;
    if (Status status = Check(api_->policy_scope(parent, json.c_str(), &id)); !status.ok()) return status;
    return id;
  }
  // Loads a C++ kernel library with its descriptor (docs/guide/add-a-kernel.md). This runs its code: load only what
  // you trust.
  Status LoadPlugin(const std::string& library, const std::string& descriptor) const {
    return Check(api_->load_plugin(library.c_str(), descriptor.c_str()));
  }
  void Invalidate() const { api_->invalidate(); }

 private:
  explicit Api(const lz_api* api) : api_(api) {}
  Status Check(int32_t code) const { return code == LZ_OK ? Status() : Status(*api_->last_error()); }

  const lz_api* api_;
};

}  // namespace layerzero
