#include "pipeline/filter.h"

#include <algorithm>

namespace lz {
namespace {

// Evaluates rows of kernels, variants and policy rules for one call.
struct CallFacts {
  const BoundCall& call;
  Surroundings around = {};
  bool Holds(const Row& row) const { return RowHolds(call, row, around); }
  bool Hold(const std::vector<Row>& rows) const {
    return std::ranges::all_of(rows, [&](const Row& r) { return Holds(r); });
  }
};

// Returns the position, from 1, of the first pattern that the kernel matches; 0: none. A pattern with a dot matches
// kernel ids, others match sources.
int PlaceIn(const std::vector<std::string>& patterns, const KernelEntry& k) {
  const auto at = std::ranges::find_if(
      patterns, [&](const std::string& p) { return GlobMatch(p, p.find('.') == p.npos ? k.source : k.id); });
  return at == patterns.end() ? 0 : int(at - patterns.begin()) + 1;
}
bool Matches(const std::vector<std::string>& patterns, const KernelEntry& k) { return PlaceIn(patterns, k) > 0; }

// The earlier of two positions, where 0 is none.
int Earlier(int a, int b) { return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b); }

// A reason that is not a rule of the kernel.
Reason OwnReason(ReasonCode code) { return {code, Rel::kEq, kNoField, kNoRow, 0, 0}; }

void ApplyPolicy(const CallFacts& facts, const OperationPolicy& of_operation, int variant, Candidate* c) {
  const Policy& policy = *of_operation.policy;
  const KernelEntry& k = *c->kernel;
  c->preferred = PlaceIn(policy.prefer_sources, k);
  c->avoided = Matches(policy.avoid_sources, k);
  bool denied = !policy.allow_sources.empty() && !Matches(policy.allow_sources, k);
  for (const ResolvedRule& rule : of_operation.rules[size_t(variant)]) {
    if (!facts.Hold(*rule.rows)) continue;
    c->preferred = Earlier(c->preferred, PlaceIn(rule.rule->prefer, k));
    c->avoided |= Matches(rule.rule->avoid, k);
    denied |= Matches(rule.rule->deny, k);
    denied |= !rule.rule->allow.empty() && !Matches(rule.rule->allow, k);
  }
  if (!policy.enabled && !k.spec.reference) denied = true;
  // References stay: otherwise a denial would become an error instead of a fallback.
  if (denied && !(k.spec.reference && policy.fallback_enabled))
    c->reasons.push_back(OwnReason(ReasonCode::kPolicyDenied));
}

// The first preference that holds decides, on the call as it is: before transforms.
void ApplyPreferences(const CallFacts& facts, Candidate* c) {
  const auto& preferences = c->kernel->preferences;
  const auto at = std::ranges::find_if(preferences, [&](const ResolvedPreference& p) { return facts.Hold(p.when); });
  c->preference = at == preferences.end() ? nullptr : &*at;
  c->priority = c->preference ? c->preference->priority : c->kernel->spec.priority;
}

void ApplyAvailability(std::span<const Backend* const> not_now, Candidate* c) {
  const KernelEntry& k = *c->kernel;
  if (!k.availability.installed) {
    c->reasons.push_back(OwnReason(k.availability.code));
  } else if (k.backend && (k.backend->state.load(std::memory_order_acquire) == Backend::State::kFailed ||
                           std::ranges::find(not_now, k.backend) != not_now.end())) {
    c->reasons.push_back(OwnReason(ReasonCode::kBackendImportFailed));
  }
}

// A kernel that is compiled at its first call of a kind gets no other call than those that it is ready for.
void ApplyReadiness(const CallFacts& facts, bool may_compile, bool simulated, Candidate* c) {
  const ResolvedJit& jit = c->kernel->jit;
  if (jit.when == Jit::kNone || jit.when == Jit::kDone) return;
  if (jit.when == Jit::kFirstCall) {
    if (simulated || (may_compile && facts.Hold(jit.never))) return;
    const auto& ready = facts.call.state->jit_ready;
    const auto of_kernel = ready.find(c->kernel);
    if (of_kernel != ready.end() && of_kernel->second.contains(JitKindOf(facts.call, *c->kernel, facts.around))) return;
  }
  c->reasons.push_back(OwnReason(ReasonCode::kJitDisabled));
}

// Which transforms may make a kernel admissible, and the reason if they may not.
struct Adaptation {
  bool allowed;
  std::string_view field;  // the field of the policy
  int64_t wanted;

  explicit Adaptation(const Policy& policy)
      : allowed(policy.allow_adaptation && !policy.strict_mode),
        field(policy.strict_mode ? "policy.strict_mode" : "policy.allow_adaptation"),
        wanted(!policy.strict_mode) {}
};

uint32_t LayoutOutputs(const Operation& op) {
  uint32_t outputs = 0;
  for (size_t o = 0; o < op.num_outputs(); ++o) outputs |= uint32_t{op.contract().outputs[o].layout} << o;
  return outputs;
}

// Returns the index input whose dtype `row` constrains, if the row holds for the other index dtype; -1: none.
int ConvertedIndex(const BoundCall& r, const Row& row) {
  if (row.predicate >= 0) return -1;
  const Field& f = r.op->fields()[row.field];
  if (f.home != FieldHome::kSlot || f.type != FieldType::kDType) return -1;
  const size_t i = f.slot - kFirstTensorSlot;
  const Param& p = r.op->input(i);
  if (p.dtypes != kIndices || p.mutated || r.tensors[i].ndim < 0) return -1;
  return Holds(row.rel, int64_t(OtherIndexDType(DTypeOf(r.tensors[i]))), row.operand, row.set) ? int(i) : -1;
}

// The transform after which a row holds; empty if none helps. For host kernels the binding copies and casts, and
// adapters handle layouts; results of native kernels are moved by dispatch.
Transforms RequiredTransforms(const BoundCall& r, const KernelSpec& spec, const Row& row) {
  if (row.contiguous_input >= 0) return {.contiguous = 1u << row.contiguous_input};
  if (const int i = ConvertedIndex(r, row); i >= 0) return {.indices = 1u << i};
  const bool layout = row.predicate < 0 && r.op->fields()[row.field].name == "layout";
  if (layout && spec.call == CallKind::kNative && Holds(row.rel, 0, row.operand, row.set)) {
    return {.outputs = LayoutOutputs(*r.op)};
  }
  return {};
}

void ApplyRows(const CallFacts& facts, const Adaptation& adaptation, bool can_transform, Candidate* c) {
  const BoundCall& r = facts.call;
  const Operation& op = *r.op;
  bool adaptable = false;
  for (size_t i = 0; i < op.num_inputs(); ++i) {  // no kernel takes mixed dtypes without a cast
    if (!(r.cast_inputs >> i & 1)) continue;
    if (can_transform && adaptation.allowed) {
      c->transforms.cast |= 1u << i;
      continue;
    }
    adaptable |= can_transform;
    const auto field = op.FindField(std::string(op.input(i).name) + ".dtype");
    c->reasons.push_back(
        {ReasonCode::kDtypeUnsupported, Rel::kEq, *field, kNoRow, int64_t(r.promoted), int64_t(DTypeOf(r.tensors[i]))});
  }
  for (size_t i = 0; i < c->kernel->rows.size(); ++i) {
    const Row& row = c->kernel->rows[i];
    if (facts.Holds(row)) continue;
    const Transforms required = can_transform ? RequiredTransforms(r, c->kernel->spec, row) : Transforms{};
    adaptable |= required.any();
    if (required.any() && adaptation.allowed) {
      c->transforms.contiguous |= required.contiguous;
      c->transforms.indices |= required.indices;
      c->transforms.outputs |= required.outputs;
    } else {
      c->reasons.push_back({row.code, row.rel, row.field, uint32_t(i), RowOperand(r, row, facts.around),
                            RowValue(r, row, facts.around)});
    }
  }
  if (adaptable && !adaptation.allowed) {
    c->reasons.push_back({ReasonCode::kTransformNotAllowed, Rel::kEq, *op.FindField(adaptation.field), kNoRow,
                          adaptation.wanted, !adaptation.wanted});
  }
}

}  // namespace

JitKind JitKindOf(const BoundCall& call, const KernelEntry& kernel, const Surroundings& around) {
  JitKind kind;
  for (const Row& field : kernel.jit.fields) kind.push_back(RowValue(call, field, around));
  for (const Row& condition : kernel.jit.conditions) kind.push_back(RowHolds(call, condition, around));
  return kind;
}

bool LacksCompilationAlone(const Candidate& c) {
  return c.kernel->jit.when == Jit::kFirstCall && c.reasons.size() == 1 &&
         c.reasons[0].code == ReasonCode::kJitDisabled;
}

DType Transforms::DTypeAfter(const BoundCall& r, size_t input) const {
  if (cast >> input & 1) return r.promoted;
  const DType dtype = DTypeOf(r.tensors[input]);
  return indices >> input & 1 ? OtherIndexDType(dtype) : dtype;
}

int VariantOf(const BoundCall& call) {
  const CallFacts facts{call};
  const auto& variants = call.state->variant_conditions;
  const auto at = std::ranges::find_if(variants, [&](const std::vector<Row>& rows) { return facts.Hold(rows); });
  return at == variants.end() ? -1 : int(at - variants.begin());
}

bool HoldForCall(const BoundCall& call, const std::vector<Row>& rows, const Device& device,
                 const OperationPolicy& policy) {
  return CallFacts{call, {device.facts, policy.facts}}.Hold(rows);
}

std::string LockOf(const BoundCall& call, int variant, const Device& device, const OperationPolicy& policy) {
  const CallFacts facts{call, {device.facts, policy.facts}};
  for (const ResolvedRule& rule : policy.rules[size_t(variant)]) {
    if (!rule.rule->lock.empty() && facts.Hold(*rule.rows)) return rule.rule->lock;
  }
  return policy.locks[size_t(variant)];
}

std::vector<Candidate> Filter(const BoundCall& call, int variant, const Device& device, const OperationPolicy& policy,
                              std::span<const Backend* const> not_now, bool may_compile, const KernelEntry* only) {
  const CallFacts facts{call, {device.facts, policy.facts}};
  const Adaptation adaptation(*policy.policy);
  // Dispatch transforms for native kernels in host memory; for host kernels the binding does, on any device.
  const bool on_cpu = Platform(device.fact(DeviceField::kPlatform)) == Platform::kCpu;
  const auto& kernels = call.state->kernels[size_t(variant)];
  std::vector<Candidate> candidates;
  candidates.reserve(kernels.size());
  for (const KernelEntry* kernel : kernels) {
    const KernelEntry& k = *kernel;
    if (only && kernel != only && !k.spec.reference) continue;
    Candidate& c = candidates.emplace_back();
    c.kernel = &k;
    ApplyPreferences(facts, &c);
    // A simulated device represents a machine that has the libraries.
    if (!device.simulated) ApplyAvailability(not_now, &c);
    const bool can_transform = k.spec.call == CallKind::kHost || (k.spec.call == CallKind::kNative && on_cpu);
    ApplyRows(facts, adaptation, can_transform, &c);
    ApplyReadiness(facts, may_compile || policy.policy->allow_jit_compile, device.simulated, &c);
    ApplyPolicy(facts, policy, variant, &c);
  }
  return candidates;
}

}  // namespace lz
