// The specification that the references share.
#pragma once

#include "core/kernel.h"

namespace lz {

// The reference of operation "norm.rms" has the id "ref.norm.rms". It takes any strides and is selected if no other
// kernel serves a call.
constexpr KernelSpec ReferenceKernel(std::string_view id, lz_launch_fn launch, DTypeMask dtypes = kFloats,
                                     std::span<const std::string_view> accepts = kAcceptsAll) {
  return {.id = id,
          .operation = id.substr(4),
          .dtypes = dtypes,
          .accepts = accepts,
          .strides = Strides::kAny,
          .priority = 0,
          .deterministic = true,
          .reference = true,
          .launch = launch};
}

}  // namespace lz
