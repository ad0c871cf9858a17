// Reference of convolution.conv1d: FP64 accumulation, any strides, any float dtype.
#include "ops/convolution/conv1d.h"

#include "core/kernel.h"

namespace {
using namespace lz;

int32_t Launch(const lz_kernel_args* args) { return ops::convolution::Reference(args, 1); }

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "ref.convolution.conv1d",
     .operation = "convolution.conv1d",
     .dtypes = kFloats,
     .accepts = kAcceptsAll,
     .strides = Strides::kAny,
     .priority = 0,
     .deterministic = true,
     .reference = true,
     .launch = &Launch},
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
