#include "verify/shadow.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "engine/engine.h"
#include "verify/run.h"

namespace lz::verify {
namespace {

constexpr int kMostKept = 16;  // calls whose inputs are kept, in a process

// True for this share of the calls of a thread.
bool IsSampled(double rate) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  return rate > 0 && std::uniform_real_distribution<double>()(random) < rate;
}

bool CanCompare(const KernelRun& run) {
  const Request& r = run.request;
  if (run.kernel.spec.reference || !r.on_cpu() || r.op->num_outputs() == 0) return false;
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
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (failed) return;
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

class Shadow : public Observer {
 public:
  explicit Shadow(Selector& selector) : selector_(selector) {}
  void Ended(const KernelRun&, const Status&, double) override {}

  Status Check(const KernelRun& run) override {
    const auto policy = selector_.policies().policy(run.request.policy);
    if (!policy.ok() || !IsSampled((*policy)->health_shadow_rate) || !CanCompare(run)) return {};
    const auto expected = Expected::Of(run.request);
    if (!expected.ok()) return {};  // the reference does not take the call: nothing to compare with
    for (const OutputReport& report : expected->Compare(run.request, run.kernel.spec.numerics)) {
      if (report.ok) continue;
      selector_.health().CountShadow(true);
      const std::string& folder = (*policy)->health_keep_inputs;
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

 private:
  Selector& selector_;
};

const bool kKnown = (Engine::SetShadow(&MakeShadow), true);

}  // namespace

std::shared_ptr<Observer> MakeShadow(Selector& selector) { return std::make_shared<Shadow>(selector); }

}  // namespace lz::verify
