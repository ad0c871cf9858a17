#include "core/reason.h"

#include "core/call_reason.h"

namespace lz {
namespace {
// In the order of ReasonCode: name, meaning, remedy.
constexpr std::array<ReasonInfo, kNumReasonCodes> kInfos = {{
    {"AUTO", "", ""},
    {"PLATFORM_MISMATCH", "the kernel is for another kind of device", "move the tensors, or use another kernel"},
    {"DEVICE_CAPABILITY_UNSUPPORTED", "the device lacks a data type, unit or instruction set",
     "use a device that has it"},
    {"SM_TOO_OLD", "the GPU's compute capability is below the kernel's", "use a newer GPU or another kernel"},
    {"SM_TOO_NEW", "the GPU's compute capability is above the kernel's", "update the kernel's library"},
    {"GPU_GENERATION_UNSUPPORTED", "the kernel is not written for this GPU generation", "use another kernel"},
    {"TENSOR_CORE_GEN_UNSUPPORTED", "the kernel needs later tensor cores", "use a newer GPU or another kernel"},
    {"INSTRUCTION_SET_MISMATCH", "the GPU lacks the kernel's matrix instructions", "use another kernel"},
    {"DRIVER_VERSION_UNSUPPORTED", "the driver or CUDA version is too old", "update the driver"},
    {"DTYPE_UNSUPPORTED", "the kernel does not take this dtype or this mix of dtypes", "convert the tensors"},
    {"HEAD_DIM_INVALID", "the head dimension is not one that the kernel is built for", "pad the head dimension"},
    {"HEAD_DIM_ALIGNMENT", "the head dimension is not a multiple of what the kernel needs", "pad the head dimension"},
    {"HEAD_DIM_TOO_LARGE", "the head dimension is above the kernel's limit", "use another kernel"},
    {"SEQ_TOO_LONG", "the sequence is longer than the kernel's limit", "split the sequence or use another kernel"},
    {"GQA_UNSUPPORTED", "query and KV head counts differ, and the kernel requires equal ones",
     "repeat the KV heads or use another kernel"},
    {"GQA_HEADS_MISMATCH", "the number of query heads per KV head is not one that the kernel has",
     "use another kernel"},
    {"ATTN_MASK_UNSUPPORTED", "the kernel takes no mask, or not of this kind",
     "pass causal=True or window= if the mask is one of these"},
    {"STRIDE_LAST_DIM", "the last axis is not dense", "make the tensor contiguous"},
    {"NOT_CONTIGUOUS", "the kernel needs contiguous tensors", "make the tensor contiguous"},
    {"CUDA_GRAPH_UNSAFE", "the kernel is not known to be safe inside a CUDA graph capture",
     "prove it with `layerzero graphs verify`, or capture another kernel"},
    {"NON_DETERMINISTIC", "deterministic results are required and the kernel's may vary", "set deterministic: false"},
    {"NOT_INSTALLED", "the kernel's library is not installed",
     "install the library; `layerzero doctor` names the command"},
    {"BACKEND_IMPORT_FAILED",
     "the library is installed, but its build does not fit this process, or its import or its probe failed",
     "`layerzero doctor` shows the error"},
    {"TOKENIZER_ID_MISMATCH", "the kernel does not have this tokenizer's ids",
     "use another kernel; lz.tokenizer_kernels has the first difference"},
    {"VOCAB_HASH_MISMATCH", "the vocabulary differs", "use the tokenizer that the model was trained with"},
    {"MERGES_HASH_MISMATCH", "the merges differ", "use the tokenizer that the model was trained with"},
    {"NORMALIZER_MISMATCH", "the normalizer or its parameters differ",
     "use the tokenizer that the model was trained with"},
    {"ADDED_TOKENS_MISMATCH", "the added tokens differ", "use the tokenizer that the model was trained with"},
    {"SPECIAL_TOKENS_MISMATCH", "the special tokens differ", "use the tokenizer that the model was trained with"},
    {"PACKED_WEIGHTS_REQUIRED", "the kernel requires prepacked weights", "prepack the weights"},
    {"KV_CACHE_LAYOUT_MISMATCH", "page size, block table or context lengths do not fit the kernel",
     "use the layout that the reason names"},
    {"KV_CACHE_DTYPE_MISMATCH", "the kernel does not read a KV cache of this dtype",
     "use a dtype that the reason names"},
    {"KV_STRATEGY_UNSUPPORTED", "the kernel, the policy or this build does not have this strategy of KV caches",
     "choose another strategy"},
    {"CAPABILITIES_SCHEMA_MISMATCH", "the backend's descriptor is invalid or of an unknown schema",
     "correct the descriptor; the message names the place"},
    {"MEMORY_HEADROOM_EXCEEDED", "the workspace would not leave the configured headroom",
     "lower memory_headroom_mb or use another kernel"},
    {"CONSTRAINT_FAILED", "a rule of the kernel does not hold", "the reason names the field"},
    {"CUDA_BLOCK_LIMIT_EXCEEDED", "the launch would have more blocks than the device allows",
     "split the batch into several calls"},
    {"CUDA_GRID_DIM_EXCEEDED", "one side of the launch grid would exceed the device's limit",
     "split the batch into several calls"},
    {"QUANT_FORMAT_UNSUPPORTED", "the kernel or the device lacks the quantization format", "use another format"},
    {"LAYOUT_UNSUPPORTED", "the kernel does not take this order of axes or broadcast axis",
     "pass the layout that the reason names"},
    {"DROPOUT_UNSUPPORTED", "the kernel has no dropout", "pass dropout_p=0 for inference"},
    {"SCALE_UNSUPPORTED", "the kernel has a fixed softmax scale", "leave the scale out"},
    {"ALIGNMENT", "an address or stride is not aligned as the kernel needs", "copy the tensor"},
    {"GRAD_UNSUPPORTED", "a gradient is required and the kernel does not provide one", "call under torch.no_grad()"},
    {"PRETOKENIZER_MISMATCH", "the pre-tokenizer differs", "use the tokenizer that the model was trained with"},
    {"QUANT_SCALES_REQUIRED", "the kernel needs scales that were not given", "pass the scales"},
    {"QUANT_GRANULARITY", "the kernel does not take scales of this granularity",
     "quantize with a granularity that the reason names"},
    {"POLICY_DENIED", "the policy does not allow the kernel", "see `layerzero policy show`"},
    {"TRANSFORM_NOT_ALLOWED", "the call would need a conversion and none is allowed",
     "convert before the call, or set allow_adaptation: true"},
    {"OFFSETS_UNSUPPORTED", "the tokenizer kernel does not return offsets", "use another kernel"},
    {"ARGUMENT_UNSUPPORTED", "the kernel does not take one of the given arguments", "use another kernel"},
    {"SHAPE_UNSUPPORTED", "a size is outside what the kernel takes", "use another kernel"},
    {"NOT_BUILT", "the library was built without code for this GPU",
     "build with LZ_CUDA_ARCHITECTURES naming the GPU's architecture"},
    {"JIT_DISABLED", "the kernel is compiled while the process runs, and is not ready for this call",
     "call `layerzero.warmup` first (`layerzero.compile_references` for references), or set allow_jit_compile: a call "
     "waits"},
    {"TP_INVARIANCE_REQUIRED",
     "the kernel's results may depend on the tensor-parallel size, and the policy forbids that",
     "set tp.require_tp_invariant: false, or use another kernel"},
    {"TP_SIZE_EXCEEDED", "the policy's tensor-parallel size is above the kernel's largest one",
     "lower tp.size, or use another kernel"},
    {"REDUCTION_ORDER_MISMATCH", "the kernel does not add in the order that the policy wants",
     "set tp.reduction_order: any, or use another kernel"},
    {"BACKEND_ERROR", "the kernel, or several of its library, failed in this process and are not selected for a while",
     "`layerzero health show` shows the failures; `lz.reset_health()` closes the breakers"},
    {"QUARANTINED", "the kernel is known to return wrong results, to crash or to lose the device for such calls",
     "install another version of its library; if the kernel was not at fault, run `layerzero health reset`"},
    {"PLAN_BUCKET_MISS", "the dispatch table has no entry for such a call, so its kernel is selected while running",
     "add its sizes to the buckets of `layerzero solve`"},
}};
static_assert(kInfos.back().name == "PLAN_BUCKET_MISS");
}  // namespace

const ReasonInfo& Info(ReasonCode code) { return kInfos[size_t(code)]; }

ReasonCode ReasonCodeFromName(std::string_view name) {
  for (size_t i = 1; i < kInfos.size(); ++i) {
    if (kInfos[i].name == name) return ReasonCode(i);
  }
  return ReasonCode::kAuto;
}

}  // namespace lz
