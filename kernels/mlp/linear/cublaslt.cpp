// Linear by cuBLASLt (kernels/gemm/cublaslt.h), the bias in its epilogue.
//   input [..., k] f32|f16|bf16 contiguous weight [n, k], rows dense or, for `columns`, columns dense bias [n],
//   optional output [..., n], all with input's dtype
// Workspace: the algorithm's. Source: cuBLASLt. `second` and `third` run what its heuristics rank after the first, or
// the last one that there is: where a device measured them they may be faster.
#include "kernels/gemm/cublaslt.h"
#include "kernels/joined.h"
#include "ops/mlp/linear.h"

namespace lz {
namespace {
using namespace lz::ops::mlp_linear;

// False: a view that is no matrix of the library.
template <bool kColumns>
bool ProductOf(const lz_tensor* t, cublaslt::Product* product) {
  const lz_tensor &weight = t[kWeight], &output = t[kOutput];
  const int64_t n = weight.shape[0], k = weight.shape[1];
  const int64_t type = cublaslt::TypeOf(DTypeOf(t[kInput]));
  *product = {.device = t[kInput].device.id,
              .type = type,
              .output_type = type,
              .rows = NumRows(output),
              .n = n,
              .k = k,
              .input_ld = k,
              .weight_ld = cublaslt::LeadingOf(weight, kColumns),
              .output_ld = n,
              .by_columns = kColumns,
              .bias = Given(t[kBias])};
  return !kColumns || cublaslt::AreMatrices(*product, output);
}

template <int kChoice, bool kColumns>
uint64_t Workspace(const lz_kernel_args* args) {
  cublaslt::Product product;
  return ProductOf<kColumns>(args->tensors, &product) ? cublaslt::WorkspaceOf(product, kChoice) : 0;
}

template <int kChoice, bool kColumns>
int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  cublaslt::Product product;
  if (!ProductOf<kColumns>(t, &product)) return LZ_LAUNCH_REFUSED;
  const cublaslt::Operands operands = {Data<const char>(t[kInput]), Data<const char>(t[kWeight]),
                                       Given(t[kBias]) ? Data<const char>(t[kBias]) : nullptr, Data<char>(t[kOutput])};
  return cublaslt::Multiply(product, operands, kChoice, args);
}

constexpr auto kColumnConstraints = Joined(cublaslt::kDenseColumns, {{"bias.contiguous", Rel::kEq, 1}});

template <int kChoice>
constexpr KernelSpec RowsOf(std::string_view id, int32_t priority) {
  return cublaslt::Spec(id, "mlp.linear",
                        {.constraints = cublaslt::kDenseRows,
                         .launch = &Launch<kChoice, false>,
                         .workspace = &Workspace<kChoice, false>,
                         .priority = priority});
}
constexpr std::array kFamily = {
    RowsOf<0>("cublaslt.mlp.linear", kLibraryPriority),
    RowsOf<1>("cublaslt.mlp.linear.second", kAfterOthers),
    RowsOf<2>("cublaslt.mlp.linear.third", kAfterOthers),
    cublaslt::Spec("cublaslt.mlp.linear.columns", "mlp.linear",
                   {.constraints = kColumnConstraints,
                    .launch = &Launch<0, true>,
                    .workspace = &Workspace<0, true>,
                    .strides = Strides::kAny}),
};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
