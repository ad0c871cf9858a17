// Reason codes whose subsystem is not built yet: nothing raises them so far. Read by the test that provokes every other
// code, and by the docs; a subsystem takes its codes out when it arrives.
#pragma once

#include <array>
#include <string_view>

#include "core/reason.h"

namespace lz {

struct PendingReason {
  ReasonCode code;
  std::string_view subsystem;
};
inline constexpr auto kPendingReasons = std::to_array<PendingReason>({
    {ReasonCode::kBackendError, "circuit breakers"},
    {ReasonCode::kJitDisabled, "compilation of kernels at run time"},
    {ReasonCode::kVirtualMemoryExhausted, "virtual KV caches"},
    {ReasonCode::kPlanBucketMiss, "dispatch tables"},
    {ReasonCode::kQuantAccuracyThresholdExceeded, "choice of quantisation formats"},
    {ReasonCode::kRequantizationRequired, "choice of quantisation formats"},
    {ReasonCode::kSpecDecodePpIncompatible, "pairs of draft and target kernels"},
    {ReasonCode::kSpecDecodeDraftTpConstraint, "pairs of draft and target kernels"},
    {ReasonCode::kSpecDecodeKvIncompatible, "pairs of draft and target kernels"},
    {ReasonCode::kSpecDecodeAlgorithmUnsupported, "pairs of draft and target kernels"},
    {ReasonCode::kQuarantined, "quarantine of kernels that give wrong results"},
});

// Empty: it is raised today.
constexpr std::string_view PendingUntil(ReasonCode code) {
  for (const PendingReason& p : kPendingReasons) {
    if (p.code == code) return p.subsystem;
  }
  return {};
}

}  // namespace lz
