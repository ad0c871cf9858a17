// Reference of convolution.conv1d: FP64 accumulation, any strides, any float dtype.
#include "ops/convolution/conv1d.h"

#include "ops/common/reference.h"

namespace {
using namespace lz;

int32_t Launch(const lz_kernel_args* args) { return ops::convolution::Reference(args, 1); }

constexpr std::array kFamily = {ReferenceKernel("ref.convolution.conv1d", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
