// Plans of cuBLASLt's products. Its matrices are column-major, so output^T [n, rows] = weight [n, k] * input^T.
#include <algorithm>

#include "kernels/gemm/cublaslt.h"
#include "platform/cuda_driver.h"

namespace lz::cublaslt {
namespace {

constexpr int64_t kMostAlignment = 16;
// In place of the address of a bias while algorithms are chosen: the library wants one that is not null.
void* const kSomeAddress = reinterpret_cast<void*>(uintptr_t{256});  // NOLINT(performance-no-int-to-ptr)

// Lets this thread allocate during its life while another one captures a graph, as the making of a handle does.
class RelaxedCapture {
 public:
  RelaxedCapture() { Exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { Exchange(); }

 private:
  void Exchange() {
    const CudaDriver* driver = FindCudaDriver();
    if (driver && driver->cuThreadExchangeStreamCaptureMode) driver->cuThreadExchangeStreamCaptureMode(&mode_);
  }
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

}  // namespace

int64_t AlignmentOf(const Operands& operands) {
  const auto bits = reinterpret_cast<uintptr_t>(operands.input) | reinterpret_cast<uintptr_t>(operands.weight) |
                    reinterpret_cast<uintptr_t>(operands.bias) | reinterpret_cast<uintptr_t>(operands.output) |
                    uintptr_t(kMostAlignment);
  return int64_t(bits & -bits);
}

Plan::Plan(const Api& api, Object handle, const Product& product, int64_t alignment)
    : api_(api), has_bias_(product.bias != 0) {
  if (Describe(product)) Choose(handle, alignment);
}

Plan::~Plan() {
  for (Object layout : {input_, weight_, output_}) {
    if (layout) api_.layout_destroy(layout);
  }
  if (desc_) api_.desc_destroy(desc_);
}

bool Plan::Describe(const Product& p) {
  const auto set = [&](DescAttribute attribute, const auto& value) {
    return api_.desc_set(desc_, attribute, &value, sizeof(value)) == kSuccess;
  };
  const auto layout = [&](Object* to, int64_t type, int64_t rows, int64_t columns, int64_t ld, int64_t step) {
    if (api_.layout_create(to, int(type), uint64_t(rows), uint64_t(columns), ld) != kSuccess) return false;
    const auto batch = int32_t(p.batch);
    return batch == 1 || (api_.layout_set(*to, kBatchCount, &batch, sizeof(batch)) == kSuccess &&
                          api_.layout_set(*to, kBatchOffset, &step, sizeof(step)) == kSuccess);
  };
  const auto epilogue = uint32_t(p.activation | (has_bias_ ? kBias : 0));
  const int64_t weight_rows = p.by_columns ? p.n : p.k, weight_columns = p.by_columns ? p.k : p.n;
  return api_.desc_create(&desc_, kComputeF32, kF32) == kSuccess &&
         set(kTransposeA, p.by_columns ? kNoTranspose : kTranspose) && set(kTransposeB, kNoTranspose) &&
         set(kEpilogue, epilogue == 0 ? uint32_t(kPlain) : epilogue) &&
         (!has_bias_ || set(kBiasPointer, kSomeAddress)) &&
         layout(&weight_, p.type, weight_rows, weight_columns, p.weight_ld, p.weight_step) &&
         layout(&input_, p.type, p.k, p.rows, p.input_ld, p.input_step) &&
         layout(&output_, p.output_type, p.n, p.rows, p.output_ld, p.output_step);
}

// Operands of less than the full alignment come without a workspace: its size must not depend on addresses.
void Plan::Choose(Object handle, int64_t alignment) {
  Object preference = nullptr;
  if (api_.preference_create(&preference) != kSuccess) return;
  const auto set = [&](int attribute, const auto& value) {
    return api_.preference_set(preference, attribute, &value, sizeof(value)) == kSuccess;
  };
  const uint64_t most = alignment == kMostAlignment ? kMostWorkspace : 0;
  bool right = set(kMaxWorkspaceBytes, most) && set(kReductionMask, kReductionInComputeType);
  for (int operand = 0; operand < 4; ++operand) right = right && set(kMinAlignmentA + operand, uint32_t(alignment));
  std::array<HeuristicResult, kMostChoices> found{};
  int count = 0;
  if (right && api_.heuristic(handle, desc_, weight_, input_, output_, output_, preference, kMostChoices, found.data(),
                              &count) == kSuccess) {
    for (int i = 0; i < std::min(count, kMostChoices); ++i) {
      if (found[size_t(i)].status == kSuccess && found[size_t(i)].workspace_bytes <= most) {
        results_[size_t(choices_++)] = found[size_t(i)];
      }
    }
  }
  api_.preference_destroy(preference);
}

uint64_t Plan::workspace_bytes(int choice) const {
  return choices_ == 0 ? 0 : results_[size_t(At(choice))].workspace_bytes;
}

int Plan::Run(Object handle, const Operands& operands, int choice, void* workspace, void* stream) {
  if (choices_ == 0) return kNotSupported;
  constexpr float kOne = 1, kZero = 0;  // with 0 the output is not read
  const HeuristicResult& chosen = results_[size_t(At(choice))];
  std::unique_lock<std::mutex> lock(bias_, std::defer_lock);
  if (has_bias_) {
    lock.lock();
    const int status = api_.desc_set(desc_, kBiasPointer, &operands.bias, sizeof(operands.bias));
    if (status != kSuccess) return status;
  }
  return api_.matmul(handle, desc_, &kOne, operands.weight, weight_, operands.input, input_, &kZero, operands.output,
                     output_, operands.output, output_, &chosen.algo, workspace, chosen.workspace_bytes, stream);
}

Plans::Key Plans::KeyOf(const Product& p, int64_t alignment) {
  return {p.device, p.type,       p.output_type, p.rows,        p.n,
          p.k,      p.input_ld,   p.weight_ld,   p.output_ld,   p.by_columns,
          p.batch,  p.input_step, p.weight_step, p.output_step, p.activation * 2 + p.bias,
          alignment};
}

size_t Plans::Hash::operator()(const Key& key) const {
  uint64_t hash = 14695981039346656037u;
  for (const int64_t part : key) {
    hash = (hash ^ uint64_t(part)) * 1099511628211u;
    hash ^= hash >> 29;
  }
  return size_t(hash);
}

Object Plans::Handle(int64_t device) {
  {
    std::shared_lock lock(mutex_);
    if (const auto at = handles_.find(device); at != handles_.end()) return at->second;
  }
  std::unique_lock lock(mutex_);
  if (const auto at = handles_.find(device); at != handles_.end()) return at->second;
  const CudaDeviceGuard guard{int(device)};
  const RelaxedCapture relaxed;
  Object handle = nullptr;
  if (api_.create(&handle) != kSuccess || !handle) return nullptr;  // tried again: the memory may be free then
  return handles_[device] = handle;
}

std::shared_ptr<Plan> Plans::Get(const Product& product, int64_t alignment) {
  const Key key = KeyOf(product, alignment);
  {
    std::shared_lock lock(mutex_);
    if (const auto at = plans_.find(key); at != plans_.end()) return at->second;
  }
  const Object handle = Handle(product.device);
  if (!handle) return nullptr;
  const CudaDeviceGuard guard{int(product.device)};
  const RelaxedCapture relaxed;
  auto plan = std::make_shared<Plan>(api_, handle, product, alignment);
  std::unique_lock lock(mutex_);
  if (plans_.size() >= kMost) plans_.clear();  // a thread that runs one keeps it
  return plans_.try_emplace(key, std::move(plan)).first->second;
}

size_t Plans::size() {
  std::shared_lock lock(mutex_);
  return plans_.size();
}

}  // namespace lz::cublaslt
