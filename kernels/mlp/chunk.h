// How many rows go through a feed-forward block at once: what its hidden rows need of workspace.
#pragma once

#include "kernels/mlp/linear/blocks.h"

namespace lz {

constexpr int64_t kMlpChunk = 10 * linear::kBlockRows;

}  // namespace lz
