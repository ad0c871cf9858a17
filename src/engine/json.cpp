// The engine's values as JSON, for Python, the CLI and the docs: contracts, kernels, reports.
#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace lz {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json Names(DTypeMask mask) {
  Json names = Json::array();
  for (size_t i = 1; i < kDTypes.size(); ++i) {
    if (mask >> i & 1) names.push_back(kDTypes[i].name);
  }
  return names;
}

Json ChoiceList(std::string_view choices) {
  Json names = Json::array();
  for (int64_t i = 0; !ChoiceName(choices, i).empty(); ++i) names.push_back(ChoiceName(choices, i));
  return names;
}

constexpr std::array<std::string_view, 5> kKinds = {"tensor", "int", "float", "bool", "choice"};
constexpr std::array<std::string_view, 4> kCompares = {"elementwise", "row_max", "exact", "token"};

Json ParamJson(const Param& p) {
  Json j = {{"name", p.name},
            {"kind", kKinds[size_t(p.kind)]},
            {"doc", p.doc},
            {"optional", p.optional},
            {"keyword_only", p.keyword_only}};
  if (p.kind == ParamKind::kTensor) {
    j["shape"] = p.shape;
    j["dtypes"] = Names(p.dtypes);
    j["same_dtype_as"] = p.same_dtype_as;
    j["broadcast"] = p.broadcast;
    j["layout"] = p.layout;
    j["mutated"] = p.mutated;
    return j;
  }
  if (p.kind == ParamKind::kChoice) {
    j["choices"] = ChoiceList(p.choices);
  }
  j["has_default"] = p.has_default;
  if (!p.has_default) return j;
  switch (p.kind) {
    case ParamKind::kFloat: j["default"] = p.float_default; break;
    case ParamKind::kBool: j["default"] = p.int_default != 0; break;
    case ParamKind::kChoice: j["default"] = ChoiceName(p.choices, p.int_default); break;
    default: j["default"] = p.int_default; break;
  }
  return j;
}

Json ContractJson(const Operation& op) {
  const Contract& c = op.contract();
  Json j = {{"name", c.name},
            {"path", op.path()},
            {"summary", c.summary},
            {"definition", c.definition},
            {"source", c.source},
            {"replaces", c.replaces},
            {"differentiable", c.differentiable},
            {"aliases", Json::array()},
            {"operations", Json::array()},
            {"params", Json::array()},
            {"outputs", Json::array()},
            {"derived", Json::array()}};
  for (std::string_view alias : c.aliases) j["aliases"].push_back(alias);
  for (const Variant& v : c.variants) {
    Json when = Json::array();
    for (const Condition& w : v.when)
      when.push_back({{"field", w.field}, {"relation", RelText(w.rel)}, {"operand", w.operand}});
    j["operations"].push_back({{"id", v.id}, {"when", when}});
  }
  for (const Param& p : c.params) j["params"].push_back(ParamJson(p));
  for (const Output& o : c.outputs) {
    j["outputs"].push_back({{"name", o.name},
                            {"shape", o.shape},
                            {"dtype", o.dtype},
                            {"doc", o.doc},
                            {"only_if", o.only_if},
                            {"layout", o.layout},
                            {"dtype_choice", o.dtype_choice},
                            {"choice_dtypes", ChoiceList(o.choice_dtypes)}});
  }
  for (const DerivedFact& d : c.derived) j["derived"].push_back({{"name", d.name}, {"expression", d.expression}});
  j["axes"] = op.axes();
  j["layouts"] = Json::object();
  for (size_t i = 0; i < op.layouts().size(); ++i) j["layouts"][op.layout_names()[i]] = op.layouts()[i];
  j["tolerance"] = {{"compare", kCompares[size_t(c.tolerance.compare)]},
                    {"float64", c.tolerance.f64},
                    {"float32", c.tolerance.f32},
                    {"float16", c.tolerance.f16},
                    {"bfloat16", c.tolerance.bf16}};
  return j;
}

// A field's number as its users write it.
std::string ValueText(const Operation& op, const Field* f, int64_t v) {
  if (!f) return std::to_string(v);
  switch (f->type) {
    case FieldType::kBool: return v ? "true" : "false";
    case FieldType::kDType: return v == 0 ? "absent" : std::string(Info(DType(v)).name);
    case FieldType::kPlatform:
      return v >= 0 && size_t(v) < kPlatformNames.size() ? std::string(kPlatformNames[size_t(v)]) : "?";
    case FieldType::kGeneration:
      return v >= 0 && size_t(v) < kGpuGenerations.size() ? std::string(kGpuGenerations[size_t(v)]) : "?";
    case FieldType::kChoice: return std::string(ChoiceName(op.contract().params[size_t(f->param)].choices, v));
    case FieldType::kIsa: return IsaText(v);
    case FieldType::kInstructionSets: {
      std::string text;
      for (size_t i = 0; i < kGpuInstructionSets.size(); ++i) {
        if (v >> i & 1) text += (text.empty() ? "" : ", ") + std::string(kGpuInstructionSets[i]);
      }
      return text.empty() ? "none" : text;
    }
    case FieldType::kNumber: break;
  }
  if (f->name == "layout" && size_t(v) < op.layout_names().size()) return op.layout_names()[size_t(v)];
  return std::to_string(v);
}

std::string WantedText(const Operation& op, const Field* f, const Row& row) {
  if (row.rel == Rel::kInMask || row.rel == Rel::kInSet) {
    std::string text;
    const auto add = [&](int64_t v) { text += (text.empty() ? "" : ", ") + ValueText(op, f, v); };
    if (row.rel == Rel::kInSet) {
      for (int64_t v : row.set) add(v);
    } else {
      for (int64_t v = 0; v < 63; ++v) {
        if (row.operand >> v & 1) add(v);
      }
    }
    return "one of " + text;
  }
  const std::string value = ValueText(op, f, row.operand);
  return row.rel == Rel::kEq ? value : std::string(RelText(row.rel)) + " " + value;
}

Json RowJson(const Operation& op, const Row& row) {
  const Field* f = row.predicate < 0 ? &op.fields()[row.field] : nullptr;
  return {{"field", row.field_name},
          {"relation", RelText(row.rel)},
          {"wanted", WantedText(op, f, row)},
          {"code", Info(row.code).name}};
}

Json ReasonJson(const Operation& op, const KernelEntry& k, const Reason& reason) {
  if (reason.row == UINT32_MAX) {  // no rule of the kernel: availability or policy
    const bool policy = reason.code == ReasonCode::kPolicyDenied;
    const std::string got = policy ? "denied" : k.availability.detail;
    return {{"code", Info(reason.code).name},
            {"field", policy ? "policy" : "source"},
            {"wanted", policy ? "allowed" : "installed"},
            {"got", got},
            {"message", policy ? "the policy denies it" : k.source + " is not available: " + got}};
  }
  const Row& row = k.rows[reason.row];
  const Field* f = row.predicate < 0 ? &op.fields()[row.field] : nullptr;
  const std::string wanted = WantedText(op, f, row), got = ValueText(op, f, reason.got);
  return {{"code", Info(reason.code).name},
          {"field", row.field_name},
          {"wanted", wanted},
          {"got", got},
          {"message", row.field_name + ": wants " + wanted + ", got " + got}};
}

// `runnable`: admissible, and the device is one of this machine.
Json CandidateJson(const Operation& op, const Candidate& c, const Device& device) {
  Json j = {{"kernel_id", c.kernel->id},
            {"source", c.kernel->source},
            {"admissible", c.admissible()},
            {"runnable", c.admissible() && !device.simulated},
            {"reference", c.kernel->spec.reference},
            {"installed", c.kernel->availability.installed},
            {"score", c.score},
            {"terms", Json::array()},
            {"reasons", Json::array()}};
  for (const Term& t : c.terms) j["terms"].push_back({{"name", t.name}, {"value", t.value}, {"source", t.source}});
  for (const Reason& r : c.reasons) j["reasons"].push_back(ReasonJson(op, *c.kernel, r));
  if (c.measured_us > 0) j["measured_us"] = c.measured_us;
  return j;
}

Json TransformsJson(const Operation& op, uint32_t contiguous_inputs) {
  Json transforms = Json::array();
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    if (contiguous_inputs >> i & 1) transforms.push_back({{"kind", "contiguous"}, {"tensor", op.input(i).name}});
  }
  return transforms;
}

Json DeviceJson(const Device& d) {
  Json facts = Json::object();
  for (size_t i = 0; i < d.facts.size(); ++i) facts[std::string(kDeviceFields[i].name)] = d.facts[i];
  return {{"name", d.name},
          {"model", d.model},
          {"vendor", d.vendor},
          {"uuid", d.uuid},
          {"platform", kPlatformNames[size_t(d.platform)]},
          {"simulated", d.simulated},
          {"isa", IsaText(d.fact(DeviceField::kIsa))},
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

}  // namespace

Result<std::string> Engine::Explain(Request& request, std::string_view device) {
  if (!device.empty()) {
    auto index = selector_.context().FindByName(device);
    if (!index.ok()) return index.TakeStatus();
    request.device = *index;
  }
  if (!selector_.policies().policy(request.policy).explain_enabled) {
    return Status(StatusCode::kConfig, {.field = "explain",
                                        .wanted = "explain_enabled: true",
                                        .got = "false",
                                        .fix = "see `layerzero policy show` for who set it"});
  }
  LZ_RETURN_IF_ERROR(Prepare(request));
  auto evaluated = selector_.Explain(request);
  if (!evaluated.ok()) return evaluated.TakeStatus();
  const SelectionReport& report = *evaluated;
  const Operation& op = *report.op;
  const Candidate* winner = report.winner >= 0 ? &report.candidates[size_t(report.winner)] : nullptr;
  Json j = {{"operation", op.contract().variants[size_t(report.variant)].id},
            {"name", op.name()},
            {"kernel_id", winner ? Json(winner->kernel->id) : Json(nullptr)},
            {"score", winner ? Json(winner->score) : Json(nullptr)},
            {"locked", report.lock.empty() ? Json(nullptr) : Json(report.lock)},
            {"candidates", Json::array()}};
  for (const Candidate& c : report.candidates) {
    j["candidates"].push_back(CandidateJson(op, c, selector_.context().device(report.device)));
  }
  if (winner) {
    j["plan"] = {{"id", report.plan->id},
                 {"kernel_id", winner->kernel->id},
                 {"uses_fallback", report.plan->uses_fallback},
                 {"fallback", report.plan->fallback ? Json(report.plan->fallback->id) : Json(nullptr)},
                 {"transforms", TransformsJson(op, report.plan->contiguous_inputs)}};
  } else {
    j["plan"] = nullptr;
  }
  j["key"] = FactsJson(request);
  char hash[17];
  static constexpr char kHex[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) hash[i] = kHex[report.policy_hash >> (60 - 4 * i) & 15];
  hash[16] = 0;
  j["policy_hash"] = hash;
  j["device"] = DeviceJson(selector_.context().device(report.device));
  return Dump(j);
}

std::string Engine::Contracts() const {
  Json j = Json::array();
  for (const auto& op : operations()) j.push_back(ContractJson(*op));
  return Dump(j);
}

std::string Engine::Kernels(const Operation* op) const {
  Json j = Json::array();
  for (const KernelEntry* k : selector_.registry().Kernels(op)) {
    Json rows = Json::array();
    for (const Row& row : k->rows) rows.push_back(RowJson(*k->op, row));
    j.push_back({{"kernel_id", k->id},
                 {"operation", k->operation},
                 {"name", k->op->name()},
                 {"source", k->source},
                 {"version", k->spec.version},
                 {"platform", kPlatformNames[size_t(k->spec.platform)]},
                 {"priority", k->spec.priority},
                 {"dtypes", Names(k->spec.dtypes)},
                 {"deterministic", k->spec.deterministic},
                 {"cuda_graph_safe", k->spec.cuda_graph_safe},
                 {"requires_grad", k->spec.requires_grad},
                 {"reference", k->spec.reference},
                 {"numerics", k->spec.numerics},
                 {"native", k->spec.call == CallKind::kNative},
                 {"installed", k->availability.installed},
                 {"detail", k->availability.detail},
                 {"index", k->index},
                 {"adapter", k->adapter},
                 {"constraints", rows}});
  }
  return Dump(j);
}

std::string Engine::Devices() {
  Json j = Json::array();
  (void)selector_.context().IndexOf({2, 0});  // CUDA is probed at first use
  for (int32_t i = 0; i < selector_.context().num_devices(); ++i)
    j.push_back(DeviceJson(selector_.context().device(i)));
  Json simulated = Json::array();
  for (const Device& d : SimulatedDevices()) simulated.push_back(DeviceJson(d));
  return Dump({{"devices", j},
               {"simulated", simulated},
               {"why_no_cuda", selector_.context().why_no_cuda()},
               {"cuda_library", cuda_library_}});
}

std::string Engine::Stats() const {
  const CacheStats s = selector_.cache_stats();
  return Dump(
      {{"cache",
        {{"entries", s.entries}, {"inserted", s.inserted}, {"evicted", s.evicted}, {"invalidated", s.invalidated}}},
       {"kernels", selector_.registry().num_kernels()},
       {"operations", operations().size()},
       {"fallbacks", selector_.num_fallbacks()}});
}

std::string Engine::ReasonCodes() {
  Json j = Json::array();
  for (size_t i = 1; i < size_t(ReasonCode::kCount); ++i) {
    const ReasonInfo& info = Info(ReasonCode(i));
    j.push_back({{"code", info.name}, {"cause", info.cause}, {"fix", info.fix}});
  }
  return Dump(j);
}

}  // namespace lz
