// Reference of sampling.topk_topp: FP64, a full sort of each row, any strides.
#include "ops/sampling/topk_topp.h"

#include "core/kernel.h"
#include "ops/common/sampling_reference.h"

namespace {
using namespace lz;
using namespace lz::ops::sampling_topk_topp;

int32_t Launch(const lz_kernel_args* args) { return sampling::SampleRows(kContract, args); }

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "ref.sampling.topk_topp",
     .operation = "sampling.topk_topp",
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
