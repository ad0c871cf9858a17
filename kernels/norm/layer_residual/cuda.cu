// Residual addition and LayerNorm of the rounded sum over the last axis on CUDA, in one pass over the rows.
//   input, residual      [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight, bias         [hidden]       dtype of input, optional
//   output, residual_out [..., hidden]  dtype of input; output may alias input, residual_out may alias residual
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formula from arXiv:1607.06450 eq. 4.
#include "kernels/norm/layer_cuda.h"
#include "kernels/spec.h"
#include "ops/norm/layer_residual.h"

namespace lz {
namespace {
using namespace lz::ops::norm_layer_residual;

constexpr NormIndices kIndices = {.input = kInput,
                                  .residual = kResidual,
                                  .weight = kWeight,
                                  .bias = kBias,
                                  .sum = kResidualOut,
                                  .output = kOutput,
                                  .eps = kEps,
                                  .offset = kWeightOffset};
int32_t Launch(const lz_kernel_args* args) { return LaunchLayer<true>(args, kIndices); }

constexpr std::array kFamily = {
    CudaSpec("cuda.norm.layer.residual", &Launch,
             {.constraints = kLayerCudaConstraints, .accepts = kAcceptsAll, .priority = 60})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
