// Reference of pooling.pool2d: FP64, any strides, any float dtype.
#include "ops/pooling/pool2d.h"

#include "ops/common/reference.h"

namespace {
using namespace lz;

int32_t Launch(const lz_kernel_args* args) { return ops::pooling::Reference(args, 2); }

constexpr std::array kFamily = {ReferenceKernel("ref.pooling.pool2d", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
