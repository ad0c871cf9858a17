// Reference of sampling.minp: FP64, a full sort of each row, any strides.
#include "ops/sampling/minp.h"

#include "ops/common/reference.h"
#include "ops/common/sampling_reference.h"

namespace {
using namespace lz;
using namespace lz::ops::sampling_minp;

int32_t Launch(const lz_kernel_args* args) { return sampling::SampleRows(kContract, args); }

constexpr std::array kFamily = {ReferenceKernel("ref.sampling.minp", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
