// What rows of products of 1 to 16 rows on CUDA share; a file of an operation has its format and its constraints.
#pragma once

#include "kernels/gemm/few_rows_cuda.h"
#include "kernels/joined.h"
#include "kernels/spec.h"

namespace lz::few_rows {

inline constexpr DTypeMask kInputs = Mask(DType::kF16, DType::kBF16);
inline constexpr auto kCalls = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"rows", Rel::kLe, kMostRows},
    {"weight.alignment", Rel::kGe, 4},
});
template <size_t kN>
constexpr auto WithCalls(const Constraint (&more)[kN]) {
  return Joined(kCalls, more);
}

// run(call) for the dtype of the input, which a row limits to f16 and bf16. `stored`: what the codes are read from.
template <class Body>
int32_t Launch(const lz_tensor& input, const lz_tensor& stored, const lz_tensor& bias, const lz_tensor& out,
               Body&& run) {
  const auto with = [&](auto type) {
    const Call<decltype(type)> call = CallOf<decltype(type)>(input, stored, bias, out);
    return call.rows == 0 || call.n == 0 ? LZ_LAUNCH_DONE : run(call);
  };
  return DTypeOf(input) == DType::kBF16 ? with(__nv_bfloat16()) : with(__half());
}

}  // namespace lz::few_rows
