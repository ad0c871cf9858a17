// When a conversion or an addition is worth a second thread.
#pragma once

#include "layerzero/c_abi.h"

namespace lz {

// One thread is done with 32k elements (5 us) before another one wakes (12 us, passive OpenMP threads).
inline lz_kernel_args AloneIfSmall(const lz_kernel_args* args, int64_t elements) {
  lz_kernel_args call = *args;
  if (elements <= 32768) call.parallel = nullptr;
  return call;
}

}  // namespace lz
