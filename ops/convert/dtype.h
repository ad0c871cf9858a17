// convert: floats of any format to another format, rounded once.
#pragma once

#include <array>
#include <string>

#include "core/contract.h"

namespace lz::ops::convert_dtype {

enum Tensor { kInput, kOutput };
enum Scalar { kDType, kSource, kSaturate };
enum Target {
  kF64,
  kF32,
  kTF32,
  kF16,
  kBF16,
  kFirstCode,
  kFirstAlways = kFirstCode + 4
};  // Source's values,
    // without kAsIs
enum Source { kAsIs, kFirstFormat, kE8M0 = 8 };

inline constexpr DTypeMask kInputs = kFloats | Mask(DType::kF8E4M3, DType::kF8E5M2, DType::kF8E8M0) | Mask(DType::kU8);

inline constexpr auto kVariants = std::to_array<Variant>({{"convert"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "...", kInputs, "the values"),
    RequiredChoice("dtype",
                   "float64|float32|tf32|float16|bfloat16|float8_e4m3fn|float8_e5m2|float8_e4m3fnuz|float8_e5m2fnuz|"
                   "float6_e2m3fn|float6_e3m2fn|float4_e2m1fn",
                   "format of the output"),
    KeywordOnly(Choice("source",
                       "input|float8_e4m3fn|float8_e5m2|float8_e4m3fnuz|float8_e5m2fnuz|float6_e2m3fn|float6_e3m2fn|"
                       "float4_e2m1fn|float8_e8m0fnu",
                       0, "format of the bytes of a uint8 input; `input`: that of its dtype")),
    KeywordOnly(OptionalBool("saturate",
                             "clamp values that are too large, infinities too; None: in formats of at most 8 bits")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "...",
     .dtype = "float32",
     .doc = "the values; tf32 as float32, formats that have no dtype of their own as uint8, one code each",
     .dtype_choice = "dtype",
     .choice_dtypes = "float64|float32|float32|float16|bfloat16|float8_e4m3fn|float8_e5m2|uint8|uint8|uint8|uint8|"
                      "uint8"},
});
// The choice `dtype` under another name, for constraints: "dtype" there is the input's.
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"target", "dtype"}});

// Wide formats overflow to infinity; float6 and float4 only have their largest value.
inline Status CheckSaturate(int64_t target, const lz_scalar& saturate) {
  const bool always = target >= kFirstAlways;
  if (!saturate.given || (saturate.value.i ? target >= kFirstCode : !always)) return {};
  return Status(
      StatusCode::kInvalidRequest,
      {.field = "saturate",
       .wanted = always ? "true for a format without infinity and NaN" : "false for a format of 16 bits or more",
       .got = saturate.value.i ? "true" : "false",
       .fix = always ? "leave it out" : "leave it out, or clamp the input first"});
}

inline Status Canonicalize(BoundArgs& args) {
  const int64_t target = args.scalars[kDType].value.i;
  LZ_RETURN_IF_ERROR(CheckSaturate(target, args.scalars[kSaturate]));
  if (!args.scalars[kSaturate].given) args.scalars[kSaturate].value.i = target >= kFirstCode;
  const DType dtype = DTypeOf(args.tensors[kInput]);
  const bool named = args.scalars[kSource].value.i != kAsIs;
  if (named == (dtype == DType::kU8)) return {};
  return Status(StatusCode::kInvalidRequest,
                {.field = "source",
                 .wanted = named ? "no name: the input's dtype determines it" : "the format of the bytes",
                 .got = std::string(Info(dtype).name) + (named ? " and a name" : " alone"),
                 .fix = named ? "leave source out, or pass the tensor's bytes, tensor.view(torch.uint8)"
                              : "pass source=, for example source=\"float8_e4m3fnuz\""});
}

inline constexpr Contract kContract = {
    .name = "convert",
    .summary = "Converts between float formats: FP64 to FP4, TF32, and the vendors' forms of FP8.",
    .definition =
        "Each value rounded once to the nearest value of the format, ties to even. Formats of at most 8 bits "
        "saturate: beyond the largest finite value, and for infinities, that value with its sign; with saturate=False "
        "as in IEEE 754: infinity, or NaN where the format has no infinity (float6 and float4 have neither and "
        "saturate always). NaN stays NaN; float6 and float4 have none and store 0. tf32 is float32 with 10 bits of "
        "mantissa. Each float4 or float6 code is stored in the low bits of a byte",
    .source = "IEEE 754-2019; OCP 8-bit floating point 1.0; OCP MX 1.0",
    .replaces = "input.to(dtype)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::convert_dtype
