// Reference of sampling.topk: FP64, a full sort of each row, any strides.
#include "ops/sampling/topk.h"

#include "core/kernel.h"
#include "ops/common/sampling_reference.h"

namespace {
using namespace lz;
using namespace lz::ops::sampling_topk;

int32_t Launch(const lz_kernel_args* args) {
  const sampling::Filters filters = {.temperature = args->scalars[kTemperature].value.f,
                                     .k = args->scalars[kK].value.i};
  sampling::SampleRows(args->tensors[kLogits], args->tensors[kToken], filters, args->scalars[kSeed].value.i,
                       args->scalars[kOffset].value.i);
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "ref.sampling.topk",
     .operation = "sampling.topk",
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
