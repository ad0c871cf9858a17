// The shared memory of a block that has a tile of rows on CUDA (tile_cuda.h, slim_kernel_cuda.h, wide_kernel_cuda.h),
// static memory included, in bytes: 92 KiB for head dimensions up to 128, 136 KiB up to 256, whose columns are padded
// to 256, and 78 KiB for wider ones, whose queries are in registers.
#pragma once

#include "core/kernel.h"

namespace lz::attention {

inline constexpr int kWideBytes = 78 << 10;
inline constexpr Constraint kKeysFit = {.field = "(d_qk + 895) / 1024 * 45056 - d_qk / 257 * 59392 + 94208",
                                        .rel = Rel::kLe,
                                        .code = ReasonCode::kDeviceCapabilityUnsupported,
                                        .fact = "device.shared_memory_per_block"};
inline constexpr Constraint kValuesFit = {.field = "(d_v + 895) / 1024 * 45056 - d_v / 257 * 59392 + 94208",
                                          .rel = Rel::kLe,
                                          .code = ReasonCode::kDeviceCapabilityUnsupported,
                                          .fact = "device.shared_memory_per_block"};

}  // namespace lz::attention
