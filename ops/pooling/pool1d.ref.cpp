// Reference of pooling.pool1d: FP64, any strides, any float dtype.
#include "ops/pooling/pool1d.h"

#include "ops/common/reference.h"

namespace {
using namespace lz;

int32_t Launch(const lz_kernel_args* args) { return ops::pooling::Reference(args, 1); }

constexpr std::array kFamily = {ReferenceKernel("ref.pooling.pool1d", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
