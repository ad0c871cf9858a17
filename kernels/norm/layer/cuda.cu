// LayerNorm over the last axis on CUDA.
//   input        [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight, bias [hidden]       dtype of input, optional
//   output       [..., hidden]  dtype of input; may alias input
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formula from arXiv:1607.06450 eq. 4.
#include "kernels/norm/layer_cuda.h"
#include "kernels/spec.h"
#include "ops/norm/layer.h"

namespace lz {
namespace {
using namespace lz::ops::norm_layer;

constexpr NormIndices kIndices = {
    .input = kInput, .weight = kWeight, .bias = kBias, .output = kOutput, .eps = kEps, .offset = kWeightOffset};
int32_t Launch(const lz_kernel_args* args) { return LaunchLayer<false>(args, kIndices); }

constexpr std::array kFamily = {CudaSpec(
    "cuda.norm.layer", &Launch, {.constraints = kLayerCudaConstraints, .accepts = kAcceptsAll, .priority = 60})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
