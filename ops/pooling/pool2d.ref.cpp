// Reference of pooling.pool2d: FP64, any strides, any float dtype.
#include "ops/pooling/pool2d.h"

#include "core/kernel.h"

namespace {
using namespace lz;

int32_t Launch(const lz_kernel_args* args) { return ops::pooling::Reference(args, 2); }

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "ref.pooling.pool2d",
     .operation = "pooling.pool2d",
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
