// Residual addition and RMSNorm of the rounded sum over the last axis on CUDA, in one pass over the rows.
//   input, residual      [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight               [hidden]       dtype of input, optional
//   output, residual_out [..., hidden]  dtype of input; output may alias input, residual_out may alias residual
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formula from arXiv:1910.07467 eq. 4.
#include "kernels/norm/rms_cuda.h"
#include "kernels/spec.h"
#include "ops/norm/rms_residual.h"

namespace lz {
namespace {
using namespace lz::ops::norm_rms_residual;

constexpr NormIndices kIndices = {.input = kInput,
                                  .residual = kResidual,
                                  .weight = kWeight,
                                  .sum = kResidualOut,
                                  .output = kOutput,
                                  .eps = kEps,
                                  .offset = kWeightOffset};
int32_t Launch(const lz_kernel_args* args) { return LaunchRms<true>(args, kIndices); }

constexpr std::array kFamily = {
    CudaSpec("cuda.norm.rms.residual", &Launch,
             {.constraints = kRmsCudaConstraints, .accepts = kRmsCudaAccepts, .priority = 60})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
