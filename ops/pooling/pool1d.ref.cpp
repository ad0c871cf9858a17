// Reference of pooling.pool1d: FP64, any strides, any float dtype.
#include "ops/pooling/pool1d.h"

#include "core/kernel.h"

namespace {
using namespace lz;

int32_t Launch(const lz_kernel_args* args) { return ops::pooling::Reference(args, 1); }

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "ref.pooling.pool1d",
     .operation = "pooling.pool1d",
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
