#include "pipeline/filter_health.h"

#include <algorithm>

#include "pipeline/request_facts.h"

namespace lz {

std::vector<CallCondition> ClassOf(const BoundCall& r) {
  const Operation& op = *r.op;
  std::vector<CallCondition> call;
  const auto add = [&](std::string field, int64_t value) {
    if (op.FindField(field)) call.push_back({std::move(field), Rel::kEq, value});
  };
  if (op.num_inputs() > 0) add("dtype", int64_t(EffectiveDType(r, 0)));
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    if (op.input(i).optional) add(std::string(op.input(i).name) + ".given", r.tensors[i].ndim >= 0);
  }
  for (size_t i = 0; i < op.num_scalars(); ++i) {
    const Param& p = op.scalar(i);
    const bool is_choice = p.kind == ParamKind::kBool || p.kind == ParamKind::kChoice;
    if (is_choice && r.scalars[i].given) add(std::string(p.name), r.scalars[i].value.i);
  }
  return call;
}

bool SaysNothingOfGraphs(const KernelEntry& kernel) {
  const auto on_captures = [](const Row& row) { return row.field_name == "capturing"; };
  return !kernel.spec.cuda_graph_safe &&
         std::ranges::count_if(kernel.rows, on_captures) == 1;  // a second one is its own
}

namespace {

void AdmitInGraphs(Candidate* c) {
  if (!SaysNothingOfGraphs(*c->kernel)) return;
  std::erase_if(c->reasons, [](const Reason& reason) { return reason.code == ReasonCode::kCudaGraphUnsafe; });
}

// In a capture: a proof admits a kernel that says nothing about graphs, and in strict mode nothing else is admissible.
template <class Holds>
void ApplyProofs(const Health::Query& query, bool strict, Holds&& holds, Candidate* c) {
  const bool unsafe =
      std::ranges::any_of(c->reasons, [](const Reason& reason) { return reason.code == ReasonCode::kCudaGraphUnsafe; });
  if (!strict && !unsafe) return;
  if (query.IsProvenInGraphs(*c->kernel, holds)) {
    AdmitInGraphs(c);
  } else if (strict) {
    c->reasons.push_back({ReasonCode::kCudaGraphUnsafe, Rel::kEq, kNoField, kNoRow, 1, 0});
  }
}

}  // namespace

void ApplyHealth(BoundCall& r, const Device& device, const OperationPolicy& policy, Health& health,
                 std::span<const KernelEntry* const> failed, std::vector<Candidate>* candidates) {
  const bool capturing = (r.flags & LZ_FLAG_CAPTURING) != 0;
  if (capturing && policy.policy->default_graph_safe)
    std::ranges::for_each(*candidates, [](Candidate& c) { AdmitInGraphs(&c); });
  if (device.simulated) return;
  const Health::Query query(health, *r.op, r.device);
  if (query.empty() && failed.empty() && !capturing) return;
  KeepCurrent(r);  // a row may be newer than the call's facts
  const auto holds = [&](const std::vector<Row>& rows) { return HoldForCall(r, rows, device, policy); };
  for (Candidate& c : *candidates) {
    if (capturing) ApplyProofs(query, policy.policy->graph_strict_mode, holds, &c);
    const auto refuse = [&](ReasonCode code, int64_t wanted) {
      c.reasons.push_back({code, Rel::kEq, kNoField, kNoRow, wanted, r.device});
    };
    const bool can_be_left_out = !c.kernel->spec.reference;
    const bool has_failed = std::ranges::find(failed, c.kernel) != failed.end();
    if (has_failed || (can_be_left_out && query.IsOpen(*c.kernel))) {
      refuse(ReasonCode::kBackendError, 0);
    } else if (const int64_t row = can_be_left_out ? query.QuarantinedBy(*c.kernel, holds) : -1; row >= 0) {
      refuse(ReasonCode::kQuarantined, row);
    }
  }
}

int MarkRun(Health& health, const KernelEntry& kernel, const BoundCall& r) {
  return health.Entered(kernel, r.device, ClassOf(r));
}

}  // namespace lz
