// Sizes of a moe.fused call and of the blocks in which its CPU kernel processes it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gemm/hidden_rows.h"
#include "kernels/launch.h"
#include "ops/moe/fused.h"

namespace lz {

constexpr int64_t kMoeTokens = 1024;  // tokens whose sums are in memory at once

struct MoeSizes {
  explicit MoeSizes(const lz_kernel_args* args) {
    using namespace ops::moe_fused;
    const lz_tensor &ids = args->tensors[kExpertIds], &down = args->tensors[kDownWeight];
    tokens = std::min(kMoeTokens, NumRows(args->tensors[kInput]));
    k = ids.shape[ids.ndim - 1];
    experts = down.shape[0];
    m = down.shape[1];
    n = down.shape[2];
  }
  int64_t tokens, k, experts, m, n;  // tokens: those of one block
};

}  // namespace lz
