// The shared memory of a block that has a tile of rows on CUDA (tile_cuda.h, slim_kernel_cuda.h), static memory
// included, in bytes: 92 KiB for head dimensions up to 128, 136 KiB for wider ones, whose columns are padded to 256.
#pragma once

#include "core/kernel.h"

namespace lz::attention {

inline constexpr Constraint kKeysFit = {.field = "(d_qk + 127) / 128 * 45056 + 49152",
                                        .rel = Rel::kLe,
                                        .code = ReasonCode::kDeviceCapabilityUnsupported,
                                        .fact = "device.shared_memory_per_block"};
inline constexpr Constraint kValuesFit = {.field = "(d_v + 127) / 128 * 45056 + 49152",
                                          .rel = Rel::kLe,
                                          .code = ReasonCode::kDeviceCapabilityUnsupported,
                                          .fact = "device.shared_memory_per_block"};

}  // namespace lz::attention
