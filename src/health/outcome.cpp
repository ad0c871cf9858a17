#include "health/outcome.h"

#include <algorithm>

namespace lz {
namespace {

// cudaError_t and cudaGetErrorString. CUDA's documentation says of each of them that the process must be ended and
// started again.
struct StickyError {
  int code;
  std::string_view text;
};
constexpr auto kSticky = std::to_array<StickyError>({
    {214, "uncorrectable ECC error encountered"},
    {220, "uncorrectable NVLink error detected"},
    {226, "Invalid access of peer GPU memory over nvlink or a hardware error"},
    {700, "an illegal memory access was encountered"},
    {702, "the launch timed out and was terminated"},
    {709, "context is destroyed"},
    {710, "device-side assert triggered"},
    {714, "hardware stack error"},
    {715, "an illegal instruction was encountered"},
    {716, "misaligned address"},
    {717, "operation not supported on global/shared address space"},
    {718, "invalid program counter"},
    {719, "unspecified launch failure"},
    {721, "external device error"},
    {810, "MPS client terminated"},
});

}  // namespace

Outcome OutcomeFromName(std::string_view name) {
  const auto at = std::ranges::find(kOutcomeNames, name);
  return at == kOutcomeNames.end() ? Outcome::kDone : Outcome(at - kOutcomeNames.begin());
}

bool IsLostContext(int cuda_error) {
  return std::ranges::any_of(kSticky, [&](const StickyError& e) { return e.code == cuda_error; });
}

bool IsLostContext(std::string_view message) {
  if (message.find("CUDA") == message.npos && message.find("cu") != 0) return false;  // "cuStreamSynchronize: ..."
  return std::ranges::any_of(kSticky, [&](const StickyError& e) { return message.find(e.text) != message.npos; });
}

}  // namespace lz
