// The products of heads by cuBLASLt (kernels/gemm/cublaslt.h), one batched product.
//   input [..., h, k] f32|f16|bf16 contiguous weight [h, n, k], rows dense or, for `columns`, columns dense
//   output [..., h, n] f32 or input's dtype
// Workspace: the algorithm's. Source: cuBLASLt.
#include "kernels/gemm/cublaslt.h"
#include "ops/mlp/head_linear.h"

namespace lz {
namespace {
using namespace lz::ops::mlp_head_linear;

// False: what the library has no product for.
template <bool kColumns>
bool ProductOf(const lz_tensor* t, cublaslt::Product* product) {
  const lz_tensor &weight = t[kWeight], &output = t[kOutput];
  const int64_t heads = weight.shape[0], n = weight.shape[1], k = weight.shape[2];
  const DType type = DTypeOf(t[kInput]), to = DTypeOf(output);
  *product = {.device = t[kInput].device.id,
              .type = cublaslt::TypeOf(type),
              .output_type = cublaslt::TypeOf(to),
              .rows = heads == 0 ? 0 : NumRows(output) / heads,
              .n = n,
              .k = k,
              .input_ld = heads * k,
              .weight_ld = cublaslt::LeadingOf(weight, kColumns),
              .output_ld = heads * n,
              .by_columns = kColumns,
              .batch = heads,
              .input_step = k,
              .weight_step = kColumns ? weight.strides[0] : n * k,
              .output_step = n};
  if (to != type && to != DType::kF32) return false;
  return !kColumns || (cublaslt::AreMatrices(*product, output) && (heads == 1 || product->weight_step >= 0));
}

template <bool kColumns>
uint64_t Workspace(const lz_kernel_args* args) {
  cublaslt::Product product;
  return ProductOf<kColumns>(args->tensors, &product) ? cublaslt::WorkspaceOf(product, 0) : 0;
}

template <bool kColumns>
int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  cublaslt::Product product;
  if (!ProductOf<kColumns>(t, &product)) return LZ_LAUNCH_REFUSED;
  return cublaslt::Multiply(
      product, {Data<const char>(t[kInput]), Data<const char>(t[kWeight]), nullptr, Data<char>(t[kOutput])}, 0, args);
}

constexpr std::array kFamily = {
    cublaslt::Spec("cublaslt.mlp.head_linear", "mlp.head_linear",
                   {.constraints = cublaslt::kDenseRows, .launch = &Launch<false>, .workspace = &Workspace<false>}),
    cublaslt::Spec("cublaslt.mlp.head_linear.columns", "mlp.head_linear",
                   {.constraints = cublaslt::kDenseColumns,
                    .launch = &Launch<true>,
                    .workspace = &Workspace<true>,
                    .strides = Strides::kAny}),
};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
