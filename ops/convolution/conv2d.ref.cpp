// Reference of convolution.conv2d: FP64 accumulation, any strides, any float dtype.
#include "ops/convolution/conv2d.h"

#include "core/kernel.h"

namespace {
using namespace lz;

int32_t Launch(const lz_kernel_args* args) { return ops::convolution::Reference(args, 2); }

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "ref.convolution.conv2d",
     .operation = "convolution.conv2d",
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
