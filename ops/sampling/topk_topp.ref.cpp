// Reference of sampling.topk_topp: FP64, a full sort of each row, any strides.
#include "ops/sampling/topk_topp.h"

#include "ops/common/reference.h"
#include "ops/common/sampling_reference.h"

namespace {
using namespace lz;
using namespace lz::ops::sampling_topk_topp;

int32_t Launch(const lz_kernel_args* args) { return sampling::SampleRows(kContract, args); }

constexpr std::array kFamily = {ReferenceKernel("ref.sampling.topk_topp", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
