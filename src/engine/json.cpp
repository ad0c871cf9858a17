// The engine's values as JSON, for Python, the CLI and the docs: kernels, reports, devices.
#include "engine/json_parts.h"

#include <algorithm>

#include "base/reclaimer.h"
#include "core/call_reason.h"
#include "engine/engine.h"
#include "engine/table.h"
#include "pipeline/dispatch_counters.h"
#include "pipeline/filter_health.h"
#include "pipeline/request_facts.h"
#include "registry/descriptor.h"
#include "registry/fact_table.h"
#include "registry/implied_rows.h"

namespace lz {
namespace {

// A set of the policy, as the values of the field that it restricts.
std::string AllowedText(const Operation& op, uint8_t slot, int64_t bits) {
  const auto caches = CachesOf(op);
  const PolicyField fact = PolicyField(slot);
  const std::string name = fact == PolicyField::kKvLayout       ? "layout"
                           : fact == PolicyField::kQuantFormats ? "format"
                           : caches.empty()                     ? ""
                                                                : std::string(caches[0]) + ".dtype";
  const auto field = op.FindField(name);
  std::string text;
  for (int64_t i = 0; field && i < 63; ++i) {
    if (bits >> i & 1) text += (text.empty() ? "" : ", ") + ValueText(op, &op.fields()[*field], i);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::string ValueText(const Operation& op, const Field* f, int64_t v) {
  if (!f) return std::to_string(v);
  switch (f->type) {
    case FieldType::kBool: return v ? "true" : "false";
    case FieldType::kDType: return v == 0 ? "absent" : std::string(Info(DType(v)).name);
    case FieldType::kPlatform:
      return v >= 0 && size_t(v) < kPlatformNames.size() ? std::string(kPlatformNames[size_t(v)]) : "?";
    case FieldType::kGeneration:
      return v >= 0 && size_t(v) < kGpuGenerations.size() ? std::string(kGpuGenerations[size_t(v)]) : "?";
    case FieldType::kChoice: return std::string(ChoiceName(f->choices, v));
    case FieldType::kIsa: return IsaText(v);
    case FieldType::kInstructionSets: {
      std::string text;
      for (size_t i = 0; i < kGpuInstructionSets.size(); ++i) {
        if (v >> i & 1) text += (text.empty() ? "" : ", ") + std::string(kGpuInstructionSets[i]);
      }
      return text.empty() ? "none" : text;
    }
    case FieldType::kNumerics: {
      std::string text;
      const auto classes = op.contract().numerics_classes;
      for (size_t i = 0; i < classes.size(); ++i) {
        if (v >> i & 1) text += (text.empty() ? "" : ", ") + std::string(classes[i]);
      }
      return text.empty() ? "none" : text;
    }
    case FieldType::kAllowed: return AllowedText(op, f->slot, v);
    case FieldType::kNumber: break;
  }
  if (f->name == "layout" && size_t(v) < op.layout_names().size()) return op.layout_names()[size_t(v)];
  return std::to_string(v);
}

std::string CapabilitiesHashOf(const std::string& kernels, const Device& d) {
  std::string text = std::string(Engine::BuildId()) + '\n' + kernels + '\n' + d.model + '\n';
  for (int64_t fact : d.facts) text += std::to_string(fact) + ' ';
  return Sha256Hex(text);
}

namespace {

// `operand`: of the row, or the value of its fact.
std::string WantedText(const Operation& op, const Field* f, const Row& row, int64_t operand) {
  if (row.rel == Rel::kInMask || row.rel == Rel::kInSet) {
    std::string text;
    const auto add = [&](int64_t v) { text += (text.empty() ? "" : ", ") + ValueText(op, f, v); };
    if (row.rel == Rel::kInSet) {
      for (int64_t v : row.set) add(v);
    } else {
      for (int64_t v = 0; v < 63; ++v) {
        if (operand >> v & 1) add(v);
      }
    }
    return "one of " + text;
  }
  const std::string value = ValueText(op, f, operand);
  return row.rel == Rel::kEq ? value : std::string(RelText(row.rel)) + " " + value;
}

// What a row wants of any call: a fact by its name.
std::string WantedText(const Operation& op, const Field* f, const Row& row) {
  if (row.fact < 0) return WantedText(op, f, row, row.operand);
  const std::string& name = op.fields()[size_t(row.fact)].name;
  return row.rel == Rel::kInMask ? "one of " + name : std::string(RelText(row.rel)) + " " + name;
}

Json RowJson(const Operation& op, const Row& row) {
  const Field* f = row.predicate < 0 ? &op.fields()[row.field] : nullptr;
  return {{"field", row.field_name},
          {"relation", RelText(row.rel)},
          {"wanted", WantedText(op, f, row)},
          {"code", Info(row.code).name}};
}

// "rows >= 1024", "dtype == bfloat16", "dtype one of float16, bfloat16"
std::string ConditionText(const Operation& op, const Row& row) {
  const Field* f = row.predicate < 0 ? &op.fields()[row.field] : nullptr;
  return row.field_name + (row.rel == Rel::kEq ? " == " : " ") + WantedText(op, f, row);
}

Json PreferenceJson(const KernelEntry& k, const ResolvedPreference& preference) {
  Json when = Json::array();
  std::string text;
  for (const Row& row : preference.when) {
    when.push_back(RowJson(*k.op, row));
    when.back().erase("code");
    text += (text.empty() ? "" : " and ") + ConditionText(*k.op, row);
  }
  return {{"priority", preference.priority}, {"when", when}, {"text", text}};
}

Json ReasonOf(ReasonCode code, std::string_view field, const std::string& wanted, const std::string& got,
              const std::string& message) {
  return {{"code", Info(code).name}, {"field", field}, {"wanted", wanted}, {"got", got}, {"message", message}};
}

Json NotCompiledJson(const KernelEntry& k) {
  const bool by_library = k.jit.when == Jit::kFirstCall;
  const std::string fix =
      by_library ? "compiled in the background, or before by `layerzero.warmup`" : "see `layerzero.compile_references`";
  return ReasonOf(ReasonCode::kJitDisabled, "compiled", "ready", "not compiled", "not compiled for this call: " + fix);
}

// A reason that is not a rule of the kernel: the policy, what is installed, memory, or a field of the call as a whole.
Json EngineReasonJson(const Operation& op, const KernelEntry& k, const Reason& reason) {
  if (reason.code == ReasonCode::kJitDisabled) return NotCompiledJson(k);
  const bool unsigned_library = !k.availability.installed && k.availability.code == ReasonCode::kPolicyDenied;
  if (reason.code == ReasonCode::kPolicyDenied && !unsigned_library) {  // by a rule or a list of sources
    return ReasonOf(reason.code, "policy", "allowed", "denied", "the policy denies it");
  }
  if (reason.code == ReasonCode::kMemoryHeadroomExceeded) {
    const std::string wanted = "at most " + std::to_string(reason.wanted) + " bytes of workspace";
    const std::string got = std::to_string(reason.got);
    return ReasonOf(reason.code, "free_memory_bytes", wanted, got, "workspace: wants " + wanted + ", got " + got);
  }
  if (reason.code == ReasonCode::kBackendImportFailed && k.availability.installed) {
    const std::string got = ProofText(*k.backend);
    return ReasonOf(reason.code, "source", "importable", got, k.backend->name + " cannot be used: " + got);
  }
  if (reason.code == ReasonCode::kBackendError || reason.code == ReasonCode::kQuarantined) {
    Health& health = Engine::Get().selector().health();
    const bool open = reason.code == ReasonCode::kBackendError;
    const std::string got = open ? health.OpenText(k, int32_t(reason.got)) : health.RowText(reason.wanted);
    return ReasonOf(reason.code, "health", open ? "a closed breaker" : "no quarantine", got, k.id + ": " + got);
  }
  if (reason.code == ReasonCode::kCudaGraphUnsafe) {
    return ReasonOf(reason.code, "graph_strict_mode", "proven on this device", "not proven",
                    k.id + ": graph_strict_mode wants a proof on this device, see layerzero.graphs.verify");
  }
  if (reason.field != kNoField) {
    const Field& f = op.fields()[reason.field];
    const std::string wanted = ValueText(op, &f, reason.wanted), got = ValueText(op, &f, reason.got);
    const std::string message = f.name + ": wants " + wanted + ", got " + got +
                                (reason.code == ReasonCode::kDtypeUnsupported ? ", and may not cast" : "");
    return ReasonOf(reason.code, f.name, wanted, got, message);
  }
  if (reason.code == ReasonCode::kConstraintFailed) {  // a locked kernel of another operation
    const std::string message = k.id + " does not implement this operation but " + k.operation;
    return ReasonOf(reason.code, "operation", k.operation, "another", message);
  }
  const std::string& got = k.availability.detail;
  return ReasonOf(reason.code, "source", "installed", got, k.source + " is not available: " + got);
}

Json ReasonJson(const Operation& op, const KernelEntry& k, const Reason& reason) {
  if (reason.row == kNoRow) return EngineReasonJson(op, k, reason);
  const Row& row = k.rows[reason.row];
  if (reason.code == ReasonCode::kJitDisabled) return NotCompiledJson(k);
  const Field* f = row.predicate < 0 ? &op.fields()[row.field] : nullptr;
  std::string wanted = WantedText(op, f, row, reason.wanted);
  if (row.fact >= 0) wanted += " (" + op.fields()[size_t(row.fact)].name + ")";
  if (reason.code == ReasonCode::kCudaGraphUnsafe && SaysNothingOfGraphs(k)) wanted += " (graph.default_graph_safe)";
  const std::string got = ValueText(op, f, reason.got);
  return ReasonOf(reason.code, row.field_name, wanted, got, row.field_name + ": wants " + wanted + ", got " + got);
}

// Each transform with its cost: bytes written, and points of the score.
Json TransformsJson(const Request& r, const Transforms& t) {
  Json transforms = Json::array();
  const Operation& op = *r.op;
  const auto add = [&](std::string_view kind, std::string_view tensor, uint64_t bytes) -> Json& {
    return transforms.emplace_back(
        Json{{"kind", kind}, {"tensor", tensor}, {"bytes", bytes}, {"cost", TransformCost(bytes, r)}});
  };
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    const std::string_view name = op.input(i).name;
    if (!(t.inputs() >> i & 1)) continue;
    const DType from = DTypeOf(r.tensors[i]), to = t.DTypeAfter(r, i);
    const bool turned = r.layout > 0 && op.input(i).layout;
    Json& one = add(from != to ? "cast" : turned ? "transpose" : "contiguous", name, InputBytes(r, i, to));
    if (from == to) continue;
    one["from"] = Info(from).name;
    one["to"] = Info(to).name;
  }
  for (size_t o = 0; o < op.num_outputs(); ++o) {
    if (!(t.outputs >> o & 1) || r.outputs[o].ndim < 0) continue;
    add("transpose", op.contract().outputs[o].name, OutputBytes(r.outputs[o]));
  }
  return transforms;
}

// null: its library is installed and was not tried yet.
Json UsableOf(const KernelEntry& k) {
  if (!k.availability.installed || !k.backend) return k.availability.installed;
  const Backend::State state = k.backend->state.load(std::memory_order_acquire);
  return state == Backend::State::kUnproven ? Json(nullptr) : Json(state == Backend::State::kProven);
}

// `runnable`: admissible, and the device is one of this machine.
Json CandidateJson(const Request& r, const Candidate& c, const Device& device) {
  Json j = {{"kernel_id", c.kernel->id},
            {"source", c.kernel->source},
            {"admissible", c.admissible()},
            {"runnable", c.admissible() && !device.simulated},
            {"reference", c.kernel->spec.reference},
            {"installed", c.kernel->availability.installed},
            {"usable", UsableOf(*c.kernel)},
            {"score", c.score},
            {"preference", c.preference ? PreferenceJson(*c.kernel, *c.preference) : Json(nullptr)},
            {"default_priority", c.kernel->spec.priority},
            {"transforms", TransformsJson(r, c.transforms)},
            {"terms", Json::array()},
            {"reasons", Json::array()}};
  for (const Term& t : c.terms) j["terms"].push_back({{"name", t.name}, {"value", t.value}, {"source", t.source}});
  for (const Reason& reason : c.reasons) j["reasons"].push_back(ReasonJson(*r.op, *c.kernel, reason));
  if (c.measured_us > 0) j["measured_us"] = c.measured_us;
  return j;
}

Json DeviceJson(const Device& d, const std::string& capabilities) {
  Json facts = Json::object();
  for (size_t i = 0; i < d.facts.size(); ++i) facts[std::string(kDeviceFields[i].name)] = d.facts[i];
  return {{"name", d.name},
          {"model", d.model},
          {"vendor", d.vendor},
          {"uuid", d.uuid},
          {"platform", kPlatformNames[size_t(d.platform)]},
          {"simulated", d.simulated},
          {"isa", IsaText(d.fact(DeviceField::kIsa))},
          {"capabilities_hash", CapabilitiesHashOf(capabilities, d)},
          {"facts", facts}};
}

Json FactsJson(const Request& r) {
  Json facts = Json::object();
  const Operation& op = *r.op;
  for (const Field& f : op.fields()) {
    if (f.home != FieldHome::kSlot) continue;
    const int32_t v = r.facts.v[f.slot];
    const bool ignored = f.mask != -1 && (r.state->classifier.masks()[f.slot] & f.mask) == 0;  // no rule reads it
    if (ignored) continue;
    facts[f.name] = ValueText(op, &f, f.mask == -1 ? v : int64_t(uint32_t(v & f.mask) >> f.shift));
  }
  return facts;
}

// The facts of the policy, as the rows of this operation's kernels compare them.
Json PolicyFactsJson(const Operation& op, const PolicyFacts& facts) {
  Json j = Json::object();
  for (size_t i = 0; i < facts.size(); ++i) {
    const Field& field = op.fields()[*op.FindField(PolicyFieldName(PolicyField(i)))];
    j[field.name] = facts[i] == kAllAllowed ? "all" : ValueText(op, &field, facts[i]);
  }
  return j;
}

}  // namespace

Result<std::string> Engine::Explain(Request& request, std::string_view device, Proofs proofs) {
  if (!device.empty()) {
    auto index = selector_.context().FindByName(device);
    if (!index.ok()) return index.TakeStatus();
    request.device = *index;
  }
  const auto policy = selector_.policies().policy(request.policy);
  if (policy.ok() && !(*policy)->explain_enabled) {
    return Status(StatusCode::kConfig, {.field = "explain",
                                        .wanted = "explain_enabled: true",
                                        .got = "false",
                                        .fix = "see `layerzero policy show` for who set it"});
  }
  LZ_RETURN_IF_ERROR(Bind(request));
  const Reclaimer::Guard guard;  // what follows reads the rules that the report is about
  auto evaluated = selector_.Explain(request, proofs);
  if (!evaluated.ok()) return evaluated.TakeStatus();
  for (size_t o = 0; o < request.op->num_outputs(); ++o) {  // workspace functions read their shapes
    if (request.outputs[o].ndim >= 0) lz::BindOutput(request, o, nullptr);
  }
  return SelectionText(request, *evaluated);
}

std::string Engine::SelectionText(const Request& request, const SelectionReport& report) {
  const Operation& op = *report.op;
  const Candidate* winner = report.winner >= 0 ? &report.candidates[size_t(report.winner)] : nullptr;
  Json j = {{"operation", op.contract().variants[size_t(report.variant)].id},
            {"name", op.name()},
            {"kernel_id", winner ? Json(winner->kernel->id) : Json(nullptr)},
            {"score", winner ? Json(winner->score) : Json(nullptr)},
            {"locked", report.lock.empty() ? Json(nullptr) : Json(report.lock)},
            {"wanted", WantedJson(report)},
            {"candidates", Json::array()}};
  for (const Candidate& c : report.candidates) {
    j["candidates"].push_back(CandidateJson(request, c, selector_.context().device(report.device)));
    if (const auto time = c.measured_us > 0 ? Measured(*c.kernel, request) : std::nullopt) {
      const double half = time->median_us * std::min(time->noise, 1.0);
      j["candidates"].back()["measured_interval_us"] = {time->median_us - half, time->median_us + half};
    }
  }
  if (winner) {
    const bool native = winner->kernel->spec.call == CallKind::kNative;
    j["plan"] = {{"id", report.plan->id},
                 {"kernel_id", winner->kernel->id},
                 {"uses_fallback", report.plan->uses_fallback()},
                 {"fallback", report.plan->fallback ? Json(report.plan->fallback->id) : Json(nullptr)},
                 {"transforms", TransformsJson(request, report.plan->transforms)},
                 {"jit_kind", KindJson(request, report, *winner->kernel, selector_.context().device(report.device))},
                 {"transform_cost_total", TransformCost(report.plan->transforms, request)},
                 {"workspace_bytes", native ? lz::WorkspaceBytes(*report.plan, request) : 0}};
  } else {
    j["plan"] = nullptr;
  }
  if (!op.layout_names().empty()) {
    j["layout"] = {{"name", op.layout_names()[size_t(request.layout)]},
                   {"source", kLayoutSourceNames[size_t(request.layout_source)]}};
  }
  j["key"] = FactsJson(request);
  j["class"] = ClassOfCall(request);
  j["table"] = TableJson(report, selector_.table().get());
  j["options"] = OptionsOf(request);
  char hash[17];
  static constexpr char kHex[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) hash[i] = kHex[report.policy_hash >> (60 - 4 * i) & 15];
  hash[16] = 0;
  j["policy_hash"] = hash;
  j["policy_facts"] = PolicyFactsJson(op, report.policy_facts);
  j["device"] = DeviceJson(selector_.context().device(report.device), selector_.registry().CapabilitiesHash());
  j["capabilities_hash"] = j["device"]["capabilities_hash"];
  return Dump(j);
}

namespace {

// Why a kernel cannot be used here, as far as that is known.
std::string DetailOf(const KernelEntry& k) {
  const bool failed = k.backend && k.backend->state.load(std::memory_order_acquire) == Backend::State::kFailed;
  return k.availability.installed && failed ? k.backend->error : k.availability.detail;
}

Json ReferenceUseJson(const ReferenceUse& use) {
  return {{"operation", use.kernel->operation},
          {"kernel_id", use.kernel->id},
          {"platform", kPlatformNames[size_t(use.platform)]},
          {"calls", use.calls},
          {"libraries", use.libraries}};
}

}  // namespace

std::string Engine::Kernels(const Operation* op, bool constraints) const {
  Json j = Json::array();
  for (const KernelEntry* k : selector_.registry().Kernels(op)) {
    Json preferences = Json::array();
    for (const ResolvedPreference& p : k->preferences) preferences.push_back(PreferenceJson(*k, p));
    j.push_back({{"kernel_id", k->id},
                 {"operation", k->operation},
                 {"name", k->op->name()},
                 {"op_kind", OpKind(k->operation)},
                 {"source", k->source},
                 {"version", k->spec.version},
                 {"platform", kPlatformNames[size_t(k->spec.platform)]},
                 {"priority", k->spec.priority},
                 {"preferences", preferences},
                 {"dtypes", Names(k->spec.dtypes)},
                 {"deterministic", k->spec.deterministic},
                 {"cuda_graph_safe", k->spec.cuda_graph_safe},
                 {"requires_grad", k->spec.requires_grad},
                 {"reference", k->spec.reference},
                 {"numerics", k->spec.numerics},
                 {"native", k->spec.call == CallKind::kNative},
                 {"library", k->spec.open != nullptr},
                 {"installed", k->availability.installed},
                 {"detail", DetailOf(*k)},
                 {"usable", UsableOf(*k)},
                 {"backend", k->backend ? k->backend->name : k->source},
                 {"jit", kJitNames[size_t(k->jit.when)]},
                 {"origin", k->origin},
                 {"notes", k->notes},
                 {"library_version", k->availability.version.empty() ? Json(nullptr) : Json(k->availability.version)},
                 {"index", k->index},
                 {"adapter", k->adapter}});
    if (!constraints) continue;
    Json& rows = j.back()["constraints"] = Json::array();
    for (const Row& row : k->rows) rows.push_back(RowJson(*k->op, row));
  }
  return Dump(j);
}

std::string Engine::Devices() {
  Json j = Json::array();
  (void)selector_.context().IndexOf({2, 0});  // CUDA is probed at first use
  const std::string capabilities = selector_.registry().CapabilitiesHash();
  for (int32_t i = 0; i < selector_.context().num_devices(); ++i) {
    const Device& d = selector_.context().device(i);
    if (!d.simulated) j.push_back(DeviceJson(d, capabilities));
  }
  Json simulated = Json::array();
  for (const Device& d : SimulatedDevices()) simulated.push_back(DeviceJson(d, capabilities));
  return Dump({{"devices", j},
               {"simulated", simulated},
               {"why_no_cuda", selector_.context().why_no_cuda()},
               {"cuda_library", cuda_library_}});
}

namespace {

// Of each kernel that ran while runs were counted. "buckets": {"<upper bound, ns>": runs}, those that are not empty.
Json RunsJson(const KernelCounters& counters) {
  Json j = Json::array();
  for (const KernelCount& c : counters.Read()) {
    Json buckets = Json::object();
    for (size_t b = 0; b < kLatencyBuckets; ++b) {
      if (c.buckets[b]) buckets[std::to_string(uint64_t{1} << b)] = c.buckets[b];
    }
    j.push_back({{"operation", c.kernel->operation},
                 {"kernel_id", c.kernel->id},
                 {"runs", c.runs},
                 {"failures", c.failures},
                 {"fallbacks", c.fallbacks},
                 {"misses", c.misses},
                 {"seconds", double(c.nanoseconds) * 1e-9},
                 {"buckets", std::move(buckets)}});
  }
  return j;
}

}  // namespace

std::string Engine::Stats() const {
  const CacheStats s = selector_.cache_stats();
  Json references = Json::array();
  for (const ReferenceUse& use : selector_.reference_uses().Read()) references.push_back(ReferenceUseJson(use));
  const size_t measured = NumRecordsInForce();
  const KernelCounters& counters = *KernelCounters::OfProcess();
  const std::string of_machine = machine_.load()->found()->problem;
  std::lock_guard lock(prior_mutex_);
  const std::string& problem = prior_problem_.empty() ? of_machine : prior_problem_;
  return Dump(
      {{"cache",
        {{"entries", s.entries}, {"inserted", s.inserted}, {"evicted", s.evicted}, {"invalidated", s.invalidated}}},
       {"kernels", selector_.registry().num_kernels()},
       {"operations", operations().size()},
       {"selections", selector_.num_selections()},
       {"fallbacks", selector_.num_fallbacks()},
       {"served_by_reference", std::move(references)},
       {"counting", counters.counting()},
       {"runs", RunsJson(counters)},
       {"runs_not_counted", counters.not_counted()},
       {"measured_records", measured},
       {"measured_records_problem", problem.empty() ? Json(nullptr) : Json(problem)}});
}

std::string Engine::DescriptorFacts() {
  Json j = Json::array();
  for (const Fact& fact : kFacts) {
    j.push_back({{"name", fact.name}, {"use", kFactUseNames[size_t(fact.use)]}, {"effect", fact.effect}});
  }
  return Dump(j);
}

std::string Engine::ReasonCodes() {
  Json j = Json::array();
  for (size_t i = 1; i < kNumReasonCodes; ++i) {
    const ReasonInfo& info = Info(ReasonCode(i));
    j.push_back({{"code", info.name}, {"cause", info.cause}, {"fix", info.fix}});
  }
  return Dump(j);
}

}  // namespace lz
