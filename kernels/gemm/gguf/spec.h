// The specification and the formats that the kernels with packed GGUF weights share.
#pragma once

#include <array>
#include <type_traits>

#include "core/kernel.h"
#include "kernels/launch.h"
#include "ops/mlp/linear/gguf.h"

namespace lz::gguf {

// Returns body(f), where f is the std::integral_constant of `format`.
template <class Body>
auto WithFormat(int64_t format, const Body& body) {
  using namespace ops::mlp_linear_gguf;
  switch (format) {
    case kQ4_0: return body(std::integral_constant<int, kQ4_0>());
    case kQ4_1: return body(std::integral_constant<int, kQ4_1>());
    case kQ8_0: return body(std::integral_constant<int, kQ8_0>());
    case kQ4_K: return body(std::integral_constant<int, kQ4_K>());
    default: return body(std::integral_constant<int, kQ6_K>());
  }
}

inline constexpr Constraint kPackedGiven = {"packed.given", Rel::kEq, 1, {}, ReasonCode::kPackedWeightsRequired};
constexpr Constraint Activations(int64_t choice) {
  return {"activations", Rel::kEq, choice, {}, ReasonCode::kQuantFormatUnsupported};
}
inline constexpr std::array<std::string_view, 3> kAccepts = {"bias", "packed", "activations"};

// The workspace of a record of kBytes for each row and 32 values of k.
template <uint64_t kBytes>
uint64_t WorkspaceOf(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[ops::mlp_linear_gguf::kInput];
  return uint64_t(NumRows(input) * (input.shape[input.ndim - 1] / 32)) * kBytes;
}

}  // namespace lz::gguf
