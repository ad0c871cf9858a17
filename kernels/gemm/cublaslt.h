// Products by cuBLASLt on CUDA, in host code: the library is opened at run time. It is, in this order, the file that
// LAYERZERO_LIBRARIES="cublaslt=<path>" names, the one that is in the process already (torch's), the one that the host
// found (base/found_library.h), which is opened when a kernel is first called.
//   Plans of a shape (layouts, algorithms) are made once per process. Workspace: what the algorithm asks for, at most
//   32 MiB. Sums in FP32; parts of k are added in FP32, so results are rounded once. Safe in graph captures: the call's
//   stream, the engine's workspace, nothing is waited for.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "core/kernel.h"
#include "kernels/gemm/cublaslt_abi.h"
#include "kernels/launch.h"

namespace lz::cublaslt {

inline constexpr uint64_t kMostWorkspace = uint64_t{32} << 20;  // what NVIDIA recommends from sm_90 on
inline constexpr uint64_t kWorkspaceAlignment = 256;            // which cublasLtMatmul requires
inline constexpr int kMostChoices = 3;                          // algorithms of a plan, in the library's order
// A launch returns an error of the library above this number, where no other codes are.
inline constexpr int32_t kErrors = 3000;

// output[row, j] = activation(sum over i of input[row, i] * weight[j, i] + bias[j]), `batch` times.
// Distances are in elements.
struct Product {
  int64_t device = 0;
  int64_t type = kF32, output_type = kF32;
  int64_t rows = 0, n = 0, k = 0;
  int64_t input_ld = 0, weight_ld = 0, output_ld = 0;
  int64_t by_columns = 0;  // 1: element [j, i] of the weight is at i * weight_ld + j
  int64_t batch = 1, input_step = 0, weight_step = 0, output_step = 0;
  int64_t activation = 0;  // kRelu, kGeluTanh or none
  int64_t bias = 0;        // 1: there is one
  bool operator==(const Product&) const = default;
};
struct Operands {
  const void* input;
  const void* weight;
  const void* bias;  // null: none
  void* output;
};
// The largest power of two that divides all addresses, at most 16: algorithms read 16 bytes at once.
int64_t AlignmentOf(const Operands& operands);

// The layouts and algorithms of a product with operands of an alignment. Any number of threads may run it.
class Plan {
 public:
  Plan(const Api& api, Object handle, const Product& product, int64_t alignment);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan();

  int choices() const { return choices_; }  // 0: the library has no algorithm
  // Of algorithm `choice`, or of the last one if there are fewer.
  uint64_t workspace_bytes(int choice) const;
  int Run(Object handle, const Operands& operands, int choice, void* workspace, void* stream);

 private:
  bool Describe(const Product& product);
  void Choose(Object handle, int64_t alignment);
  int At(int choice) const { return choice < choices_ ? choice : choices_ - 1; }

  const Api& api_;
  bool has_bias_;
  Object desc_ = nullptr, input_ = nullptr, weight_ = nullptr, output_ = nullptr;
  std::array<HeuristicResult, kMostChoices> results_{};
  int choices_ = 0;
  std::mutex bias_;  // its address is a part of the descriptor
};

// The handles of the devices and the plans of a library.
class Plans {
 public:
  explicit Plans(const Api& api) : api_(api) {}
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  // Null if the library has no handle for the device. At most kMost plans are kept.
  std::shared_ptr<Plan> Get(const Product& product, int64_t alignment);
  Object Handle(int64_t device);  // null if there is none; made with the device current
  size_t size();

  static constexpr size_t kMost = 4096;

 private:
  using Key = std::array<int64_t, 16>;
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  static Key KeyOf(const Product& product, int64_t alignment);

  const Api& api_;
  std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<Plan>, Hash> plans_;
  std::unordered_map<int64_t, Object> handles_;  // kept for the life of the process
};

// KernelSpec::open. Without a path the library need not be opened yet.
const char* Open(const char* path);
// Of the process's library, opened now if it was not; null if it cannot be.
Plans* OfProcess();
// "LAYERZERO_LIBRARIES", "the process" or "a file that the host found"; empty: none is open.
std::string Origin();

// For a kernel's workspace and launch function; `choice` as in Plan. The bytes include those for alignment.
uint64_t WorkspaceOf(const Product& product, int choice);
// Whether the library has an algorithm for it.
bool Serves(const Product& product, const Operands& operands);
// LZ_LAUNCH_REFUSED where the library has no algorithm or refuses the call before it writes anything.
int32_t Multiply(const Product& product, const Operands& operands, int choice, const lz_kernel_args* args,
                 uint64_t skipped_workspace = 0);

// A kernel of this library; see the head of this file for what is promised.
struct Fields {
  std::span<const Constraint> constraints;
  lz_launch_fn launch;
  lz_workspace_fn workspace;
  DTypeMask dtypes = kF32F16BF16;
  std::span<const std::string_view> accepts = kAcceptsAll;
  Strides strides = Strides::kContiguous;
  int32_t priority = kLibraryPriority;
};
constexpr KernelSpec Spec(std::string_view id, std::string_view operation, const Fields& fields) {
  return {.id = id,
          .operation = operation,
          .platform = Platform::kCuda,
          .dtypes = fields.dtypes,
          .constraints = fields.constraints,
          .accepts = fields.accepts,
          .strides = fields.strides,
          .priority = fields.priority,
          .cuda_graph_safe = true,
          .launch = fields.launch,
          .workspace = fields.workspace,
          .open = &Open};
}

inline constexpr int64_t kFirstSm = 80;  // with bf16
inline constexpr Constraint kOnSm = {"device.sm", Rel::kGe, kFirstSm};
inline constexpr auto kDenseRows = std::to_array<Constraint>({kOnSm, {"k", Rel::kGt, 0}});
// Of `columns`.
inline constexpr auto kDenseColumns = std::to_array<Constraint>({
    kOnSm,
    {"input.contiguous", Rel::kEq, 1},
    {"weight.columns_dense", Rel::kEq, 1},
    {"k", Rel::kGt, 0},
});

// weight [..., n, k]: elements from a row to the next, or, by columns, from a column to the next.
inline int64_t LeadingOf(const lz_tensor& weight, bool by_columns) {
  const int64_t n = weight.shape[weight.ndim - 2], k = weight.shape[weight.ndim - 1];
  return !by_columns ? k : k == 1 ? n : weight.strides[weight.ndim - 1];
}
// False: views of weight and output that are no matrices of the library. Of `columns`; others are contiguous.
inline bool AreMatrices(const Product& product, const lz_tensor& output) {
  return product.weight_ld >= product.n && RowOffsets(output).dense(product.n) && output.strides[output.ndim - 1] == 1;
}

inline int64_t TypeOf(DType type) { return type == DType::kBF16 ? kBF16 : type == DType::kF16 ? kF16 : kF32; }

}  // namespace lz::cublaslt
