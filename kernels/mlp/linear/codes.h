// What kernels that read codes of quantised weights have in common.
#pragma once

#include <cstdint>

namespace lz::linear {

constexpr int64_t kCodesAhead = 4096;  // bytes of codes that are asked for early; docs/design/0011

}  // namespace lz::linear
