#include "pipeline/filter.h"

#include <algorithm>

namespace lz {
namespace {

struct Facts3 {
  const Request& request;
  const Device& device;
  const OperationPolicy& policy;
  int64_t Value(const Row& row) const { return RowValue(request, row, device.facts, policy.facts); }
  bool Holds(const Row& row) const {
    if (row.predicate >= 0) {
      return request.facts.v[kSlotPredicates0 + row.predicate / 32] >> (row.predicate % 32) & 1;
    }
    return lz::Holds(row.rel, Value(row), row.operand, row.set);
  }
  bool Holds(const ResolvedRule& rule) const {
    return std::all_of(rule.rows.begin(), rule.rows.end(), [&](const Row& r) { return Holds(r); });
  }
};

// A pattern with a dot is about kernel ids, without one about sources.
bool Matches(const std::vector<std::string>& patterns, const KernelEntry& k) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& p) { return GlobMatch(p, p.find('.') == p.npos ? k.source : k.id); });
}

Reason PolicyReason(ReasonCode code) { return {code, Rel::kEq, UINT16_MAX, UINT32_MAX, 0, 0}; }

void ApplyPolicy(const Facts3& facts, int variant, Candidate* c) {
  const Policy& policy = *facts.policy.policy;
  const KernelEntry& k = *c->kernel;
  c->preferred = Matches(policy.prefer_sources, k);
  c->avoided = Matches(policy.avoid_sources, k);
  bool denied = !policy.allow_sources.empty() && !Matches(policy.allow_sources, k);
  for (const ResolvedRule& rule : facts.policy.rules[size_t(variant)]) {
    if (!facts.Holds(rule)) continue;
    c->preferred |= Matches(rule.rule->prefer, k);
    c->avoided |= Matches(rule.rule->avoid, k);
    denied |= Matches(rule.rule->deny, k);
    denied |= !rule.rule->allow.empty() && !Matches(rule.rule->allow, k);
  }
  if (!policy.enabled && !k.spec.reference) denied = true;
  // References stay: without them a denial would turn into an error instead of a fallback.
  if (denied && !(k.spec.reference && policy.fallback_enabled))
    c->reasons.push_back(PolicyReason(ReasonCode::kPolicyDenied));
}

}  // namespace

int VariantOf(const Request& request) {
  const auto& variants = request.state->variant_conditions;
  for (size_t v = 0; v < variants.size(); ++v) {
    const bool all = std::all_of(variants[v].begin(), variants[v].end(), [&](const Row& row) {
      if (row.predicate >= 0) {
        return bool(request.facts.v[kSlotPredicates0 + row.predicate / 32] >> (row.predicate % 32) & 1);
      }
      return Holds(row.rel, RowValue(request, row, {}, {}), row.operand, row.set);
    });
    if (all) return int(v);
  }
  return -1;
}

std::string LockOf(const Request& request, int variant, const Device& device, const OperationPolicy& policy) {
  const Facts3 facts{request, device, policy};
  for (const ResolvedRule& rule : policy.rules[size_t(variant)]) {
    if (!rule.rule->lock.empty() && facts.Holds(rule)) return rule.rule->lock;
  }
  return policy.locks[size_t(variant)];
}

std::vector<Candidate> Filter(const Request& request, int variant, const Device& device,
                              const OperationPolicy& policy) {
  const Facts3 facts{request, device, policy};
  // Dispatch copies for native kernels in host memory; for host kernels the door copies, on any device.
  const bool adapt = policy.policy->allow_adaptation && !policy.policy->strict_mode;
  const bool on_cpu = Platform(device.fact(DeviceField::kPlatform)) == Platform::kCpu;
  const auto& kernels = request.state->kernels[size_t(variant)];
  std::vector<Candidate> candidates(kernels.size());
  for (size_t i = 0; i < kernels.size(); ++i) {
    Candidate& c = candidates[i];
    const KernelEntry& k = *kernels[i];
    c.kernel = &k;
    // A simulated device answers for a machine that has the libraries.
    if (!k.availability.installed && !device.simulated) c.reasons.push_back(PolicyReason(k.availability.code));
    const bool may_copy = adapt && (k.spec.call == CallKind::kHost || (k.spec.call == CallKind::kNative && on_cpu));
    for (size_t r = 0; r < k.rows.size(); ++r) {
      const Row& row = k.rows[r];
      if (facts.Holds(row)) continue;
      if (row.contiguous_input >= 0 && may_copy) {
        c.contiguous_inputs |= 1u << row.contiguous_input;
        continue;
      }
      c.reasons.push_back({row.code, row.rel, row.field, uint32_t(r), row.operand, facts.Value(row)});
    }
    ApplyPolicy(facts, variant, &c);
  }
  return candidates;
}

}  // namespace lz
