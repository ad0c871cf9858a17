#include "verify/shadow.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/trusted_file.h"
#include "engine/engine.h"
#include "pipeline/filter_health.h"
#include "platform/cuda_driver.h"
#include "verify/run.h"

namespace lz::verify {
namespace {

constexpr size_t kMostBytes = size_t{256} << 20;  // of a device's call
constexpr int kMostKept = 16;                     // calls whose inputs are kept, in a process

// True for this share of the calls of a thread.
bool IsSampled(double rate) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  return rate > 0 && std::uniform_real_distribution<double>()(random) < rate;
}

bool CanCompare(const KernelRun& run) {
  const Request& r = run.request;
  if (run.kernel.spec.reference || r.op->num_outputs() == 0 || (r.flags & LZ_FLAG_CAPTURING) != 0) return false;
  for (size_t o = 0; o < r.op->num_outputs(); ++o) {
    const lz_tensor& t = r.tensors[r.op->num_inputs() + o];
    if (r.outputs[o].ndim >= 0 && (t.ndim < 0 || !t.data)) return false;  // a host kernel's, which no binding lent
  }
  return WrittenInputs(run.kernel, r).empty();
}

// One tensor as a .npy file of its bytes in row-major order; formats that NumPy does not have are unsigned integers.
void WriteNpy(const std::string& path, const lz_tensor& t) {
  const OwnedTensor copy = CopyOf(t);
  std::string shape;
  for (int32_t d = 0; d < t.ndim; ++d) shape += std::to_string(t.shape[d]) + ",";
  const DType dtype = copy.dtype();
  const char kind = dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kF16 ? 'f'
                    : dtype == DType::kI64 || dtype == DType::kI32                       ? 'i'
                                                                                         : 'u';
  std::string header = "{'descr': '<" + std::string(1, kind) + std::to_string(ByteSize(dtype)) +
                       "', 'fortran_order': False, 'shape': (" + shape + "), }";
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file.write("\x93NUMPY\x01\x00", 8);
  const auto length = uint16_t(header.size());
  file.put(char(length & 255)).put(char(length >> 8));
  file << header;
  file.write(copy.data(), std::streamsize(copy.numel() * ByteSize(dtype)));
}

// A failure to write is none of the call's.
void KeepInputs(const std::string& folder, const KernelRun& run, const std::string& fault) {
  static std::atomic<int> kept{0};
  const int number = kept.fetch_add(1);
  if (number >= kMostKept) return;
  const Request& r = run.request;
  const std::string path = folder + "/" + run.kernel.id + "." + std::to_string(number);
  if (!MakeTrustedFolder(folder).ok() || !MakeTrustedFolder(path).ok()) return;
  nlohmann::json call = {{"operation", r.op->name()}, {"kernel_id", run.kernel.id}, {"fault", fault}};
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    if (r.tensors[i].ndim < 0) continue;
    const std::string name(r.op->input(i).name);
    call["tensors"][name] = Info(DTypeOf(r.tensors[i])).name;
    WriteNpy(path + "/" + name + ".npy", r.tensors[i]);
  }
  for (size_t i = 0; i < r.op->num_scalars(); ++i) {
    const lz_scalar& s = r.scalars[i];
    if (!s.given) continue;
    const bool is_float = r.op->scalar(i).kind == ParamKind::kFloat;
    call["scalars"][std::string(r.op->scalar(i).name)] =
        is_float ? nlohmann::json(s.value.f) : nlohmann::json(s.value.i);
  }
  std::ofstream(path + "/call.json") << call.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
}

// A call on a device, with copies of its tensors in host memory.
struct HostCall {
  Request request;
  std::vector<OwnedTensor> memory;
};

// From the first to the last element of `t`.
size_t BytesOf(const lz_tensor& t) {
  int64_t last = 0;
  for (int32_t d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 0) return 0;
    last += (t.shape[d] - 1) * t.strides[d];
  }
  return size_t(last + 1) * ByteSize(DTypeOf(t));
}

// nullptr: it is too large, or the device does not answer.
std::shared_ptr<HostCall> CopyToHost(const Request& r) {
  const size_t count = r.op->num_inputs() + r.op->num_outputs();
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += r.tensors[i].ndim < 0 ? 0 : BytesOf(r.tensors[i]);
  if (bytes > kMostBytes) return nullptr;
  const CudaDeviceGuard guard(r.where.id);
  auto call = std::make_shared<HostCall>(HostCall{r, std::vector<OwnedTensor>(count)});
  std::vector<char> staged;
  for (size_t i = 0; i < count; ++i) {
    lz_tensor t = r.tensors[i];
    if (t.ndim < 0) continue;
    staged.resize(BytesOf(t));
    const char* const from = static_cast<const char*>(t.data) + t.byte_offset;
    if (!staged.empty() && !copy_from_device(r.stream, from, staged.size(), staged.data())) return nullptr;
    t.data = staged.data(), t.byte_offset = 0;
    call->memory[i] = CopyOf(t);
    call->request.tensors[i] = call->memory[i].tensor();
  }
  call->request.where = {1, 0};
  return call;
}

class Shadow : public Observer {
 public:
  explicit Shadow(Selector& selector) : selector_(selector) {}
  ~Shadow() override {
    if (thread_.joinable()) thread_.join();
  }
  void Ended(const KernelRun&, const Status&, double) override {}

  Status Check(const KernelRun& run) override {
    const auto policy = selector_.policies().policy(run.request.policy);
    if (!policy.ok() || !IsSampled((*policy)->health_shadow_rate) || !CanCompare(run)) return {};
    if (run.request.on_cpu()) return Compare(run, (*policy)->health_keep_inputs);
    if (busy_.exchange(true)) return {};
    if (auto call = CopyToHost(run.request)) {
      CompareLater(run, std::move(call), (*policy)->health_keep_inputs);
    } else {
      busy_ = false;
    }
    return {};
  }

 private:
  Status Compare(const KernelRun& run, const std::string& folder) {
    const auto expected = Expected::Of(run.request);
    if (!expected.ok()) return {};  // the reference does not take the call: nothing to compare with
    for (const OutputReport& report : expected->Compare(run.request, run.kernel.spec.numerics)) {
      if (report.ok) continue;
      selector_.health().CountShadow(true);
      if (!folder.empty()) KeepInputs(folder, run, report.Text());
      return Status(StatusCode::kKernelFailed,
                    {.field = std::string(run.request.op->name()) + ": kernel " + run.kernel.id,
                     .wanted = "the reference's result within the operation's tolerance",
                     .got = report.Text(),
                     .fix = "report it; the kernel is quarantined for such calls"});
    }
    selector_.health().CountShadow(false);
    return {};
  }

  void CompareLater(const KernelRun& run, std::shared_ptr<HostCall> call, std::string folder) {
    if (thread_.joinable()) thread_.join();  // it has ended: busy_ was false
    Failure failure{run.kernel, run.request.device, Outcome::kWrong, "", ClassOf(run.request)};
    thread_ = std::thread([this, failure = std::move(failure), call = std::move(call), folder = std::move(folder)] {
      Failure found = failure;
      const Status status = Compare({failure.kernel, call->request, false, false}, folder);
      found.text = status.Text();
      if (!status.ok()) selector_.health().Report(found);
      busy_ = false;
    });
  }

  Selector& selector_;
  std::atomic<bool> busy_{false};  // a call of a device is being copied or compared
  std::thread thread_;
};

const bool kKnown = (Engine::SetShadow(&MakeShadow), true);

}  // namespace

bool (*copy_from_device)(void* stream, const void* from, size_t bytes, void* to) = &CopyFromCuda;

std::shared_ptr<Observer> MakeShadow(Selector& selector) { return std::make_shared<Shadow>(selector); }

}  // namespace lz::verify
