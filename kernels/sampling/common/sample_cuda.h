// One token a row from logits under top-k, top-p and min-p on CUDA: the kernel is kernels/sampling/parts/sample.cu.
#pragma once

#include "core/contract.h"
#include "kernels/cuda.h"
#include "kernels/sampling/common/block_cuda.h"

namespace lz::sampler {

// Where an operation has its arguments: indices of scalars and tensors, -1 where it has none.
struct SampleIndices {
  int k = -1, p = -1, min_p = -1, temperature = -1, seed = -1, offset = -1;
  int row_k = -1, row_p = -1, row_min_p = -1, row_temperature = -1, uniform = -1, token = -1;

  constexpr explicit SampleIndices(const Contract& contract) {
    int scalars = 0;
    token = 0;
    for (const Param& param : contract.params) {
      const int index = param.kind == ParamKind::kTensor ? token++ : scalars++;
      if (param.name == "k") k = index;
      if (param.name == "p") p = index;
      if (param.name == "min_p") min_p = index;
      if (param.name == "temperature") temperature = index;
      if (param.name == "seed") seed = index;
      if (param.name == "offset") offset = index;
      if (param.name == "row_k") row_k = index;
      if (param.name == "row_p") row_p = index;
      if (param.name == "row_min_p") row_min_p = index;
      if (param.name == "row_temperature") row_temperature = index;
      if (param.name == "uniform") uniform = index;
    }
  }
};
int32_t LaunchSample(const SampleIndices& arguments, const lz_kernel_args* args);

}  // namespace lz::sampler
