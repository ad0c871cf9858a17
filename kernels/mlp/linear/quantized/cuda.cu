// Linear of 1 to 16 rows with quantized weights on CUDA: every weight is read once, decoded in registers, multiplied by
// tensor cores.
//   input  [..., k]  f16|bf16, rows dense, at most 16       weight or packed: rows begin at multiples of 16 bytes
//   weight_scale [scale_rows, scale_columns]                groups of multiples of 32, NVFP4 16
//   bias   [n]       dtype of input, optional               output [..., n]
// Workspace: none. Deterministic. Safe in graph captures. Source: own. FP32 sums of exact products.
#include <bit>

#include "kernels/gemm/few_rows_spec_cuda.h"
#include "kernels/gemm/quantized/formats_cuda.h"
#include "ops/mlp/linear/quantized.h"

namespace lz {
namespace {
using namespace lz::ops::mlp_linear_quantized;
using few_rows::Codes;
using few_rows::QuantParams;

Codes CodesOf(int64_t format, bool packed) {
  switch (format) {
    case ops::kInt8:
    case ops::kUInt8: return Codes::kBytes;
    case ops::kInt4:
    case ops::kUInt4: return packed ? Codes::kPackedNibbles : Codes::kNibbles;
    case ops::kMXFP4:
    case ops::kNVFP4: return packed ? Codes::kPackedE2M1 : Codes::kE2M1;
    case ops::kFP8E4M3:
    case ops::kMXFP8E4M3: return Codes::kE4M3;
    default: return Codes::kE5M2;
  }
}

QuantParams ParamsOf(const lz_kernel_args* args) {
  const lz_tensor *t = args->tensors, &scale = t[kWeightScale], &zero = t[kZeroPoint], &outer = t[kTensorScale];
  const int64_t format = args->scalars[kFormat].value.i, n = t[kWeight].shape[0];
  const int64_t k = t[kInput].shape[t[kInput].ndim - 1];
  const bool half_bytes = ops::kQuantInfo[size_t(format)].pack == 2;
  const int64_t stage = half_bytes ? 256 : 128;
  QuantParams p = {};
  p.scale_type = DTypeOf(scale) == DType::kU8 ? DType::kF8E8M0 : DTypeOf(scale);
  p.scale_size = int32_t(ByteSize(p.scale_type));
  p.scale = Data<const uint8_t>(scale), p.scale_stride = scale.strides[0] * p.scale_size;
  p.columns = int32_t(scale.shape[1]), p.group = int32_t(k / scale.shape[1]);
  p.row_block = int32_t(n / scale.shape[0]);
  p.aligned = (reinterpret_cast<uintptr_t>(p.scale) | uint64_t(p.scale_stride)) % 4 == 0;
  if (Given(zero)) p.zero = Data<const int32_t>(zero), p.zero_stride = zero.strides[0];
  if (Given(outer)) {
    p.tensor_scale = Data<const float>(outer);
    p.tensor_scale_stride = outer.ndim > 0 && outer.shape[0] > 1 ? outer.strides[0] : 0;
  }
  const bool often = format == ops::kMXFP4 || format == ops::kNVFP4;
  p.stage_groups = !often && (p.columns == 1 || p.group % stage == 0) ? 0
                   : stage % p.group == 0                             ? int32_t(stage / p.group)
                                                                      : -1;
  p.stages_of_group = p.columns == 1 ? 0 : int32_t(p.group / stage);
  p.unit_shift = p.stage_groups > 0 ? std::countr_zero(uint32_t(p.group / few_rows::kUnit)) : 0;
  if (ops::IsInteger(format) && !ops::IsUnsigned(format)) {
    p.flip = half_bytes ? 0x00080008u : 0x80808080u;
    p.bias = half_bytes ? 8 : 128;
  }
  return p;
}

template <class T, Codes kCodes, DType kScale = DType::kF32>
int32_t Run(const few_rows::Call<T>& call, const QuantParams& p, void* stream) {
  if constexpr (kCodes <= Codes::kPackedNibbles) {
    if (p.zero != nullptr) return few_rows::Run<T, few_rows::Quantized<kCodes, kScale, true>>(call, p, stream);
  }
  return few_rows::Run<T, few_rows::Quantized<kCodes, kScale, false>>(call, p, stream);
}

template <class T>
int32_t RunFormat(const few_rows::Call<T>& call, Codes codes, const QuantParams& p, void* stream) {
  const bool e4m3 = p.scale_type == DType::kF8E4M3;
  switch (codes) {
    case Codes::kBytes: return Run<T, Codes::kBytes>(call, p, stream);
    case Codes::kNibbles: return Run<T, Codes::kNibbles>(call, p, stream);
    case Codes::kPackedNibbles: return Run<T, Codes::kPackedNibbles>(call, p, stream);
    case Codes::kE2M1:
      return e4m3 ? Run<T, Codes::kE2M1, DType::kF8E4M3>(call, p, stream)
                  : Run<T, Codes::kE2M1, DType::kF8E8M0>(call, p, stream);
    case Codes::kPackedE2M1:
      return e4m3 ? Run<T, Codes::kPackedE2M1, DType::kF8E4M3>(call, p, stream)
                  : Run<T, Codes::kPackedE2M1, DType::kF8E8M0>(call, p, stream);
    case Codes::kE4M3: return Run<T, Codes::kE4M3>(call, p, stream);
    default: return Run<T, Codes::kE5M2>(call, p, stream);
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const bool packed = Given(t[kPacked]);
  const lz_tensor& stored = t[packed ? kPacked : kWeight];
  return few_rows::Launch(t[kInput], stored, t[kBias], t[kOutput], [&]<class T>(const few_rows::Call<T>& call) {
    return RunFormat(call, CodesOf(args->scalars[kFormat].value.i, packed), ParamsOf(args), args->stream);
  });
}

constexpr auto Constraints(Constraint format, int64_t group) {
  return few_rows::WithCalls({format,
                              {"k", Rel::kGe, 16},
                              {"group", Rel::kMultipleOf, group, {}, ReasonCode::kQuantGranularity},
                              {"input.alignment", Rel::kGe, 4},
                              {"packed.alignment", Rel::kGe, 4}});
}
constexpr auto kConstraints =
    Constraints({"format", Rel::kLt, ops::kNVFP4, {}, ReasonCode::kQuantFormatUnsupported}, few_rows::kUnit);
constexpr auto kNVFP4Constraints =
    Constraints({"format", Rel::kEq, ops::kNVFP4, {}, ReasonCode::kQuantFormatUnsupported}, few_rows::kUnit / 2);
constexpr KernelSpec Spec(std::string_view id, std::span<const Constraint> constraints) {
  return CudaSpec(id, &Launch,
                  {.operation = "mlp.linear.quantized",
                   .dtypes = few_rows::kInputs,
                   .constraints = constraints,
                   .accepts = kAcceptsAll});
}
constexpr std::array kFamily = {Spec("cuda.mlp.linear.quantized", kConstraints),
                                Spec("cuda.mlp.linear.quantized.nvfp4", kNVFP4Constraints)};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
