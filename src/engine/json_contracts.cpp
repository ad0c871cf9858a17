// Contracts as JSON.
#include <algorithm>
#include <array>

#include "base/reclaimer.h"
#include "engine/engine.h"
#include "engine/json_parts.h"

namespace lz {
namespace {

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
    j["promotes"] = p.promotes;
    j["broadcast"] = p.broadcast;
    j["layout"] = p.layout;
    j["mutated"] = p.mutated;
    j.update({{"index", p.index}, {"batched_rank", p.batched_rank}});
    return j;
  }
  if (p.kind == ParamKind::kChoice) j["choices"] = ChoiceList(p.choices);
  j["folds"] = p.folds;
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

// One operation of a contract, with the reference that runs if no other kernel may.
Json OperationJson(const Operation& op, size_t variant) {
  const Variant& v = op.contract().variants[variant];
  Json when = Json::array();
  for (const Condition& w : v.when) {
    when.push_back({{"field", w.field}, {"relation", RelText(w.rel)}, {"operand", w.operand}});
  }
  const Reclaimer::Guard guard;
  const auto& kernels = op.state().kernels[variant];
  const auto reference = std::ranges::find_if(kernels, [](const KernelEntry* k) { return k->spec.reference; });
  const bool has_fallback = reference != kernels.end();
  return {{"id", v.id},
          {"when", when},
          {"op_kind", OpKind(v.id)},
          {"has_fallback", has_fallback},
          {"fallback_impl", has_fallback ? Json((*reference)->id) : Json(nullptr)}};
}

bool HasOutput(const Contract& c, std::string_view name) {
  return std::ranges::any_of(c.outputs, [&](const Output& o) { return o.name == name; });
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
            {"supports_batched", op.leading_axis() >= 0 || std::ranges::count(op.axes(), "b") > 0},
            {"returns_offsets", HasOutput(c, "offsets")},
            {"aliases", Json::array()},
            {"operations", Json::array()},
            {"params", Json::array()},
            {"outputs", Json::array()},
            {"derived", Json::array()}};
  for (std::string_view alias : c.aliases) j["aliases"].push_back(alias);
  for (size_t v = 0; v < c.variants.size(); ++v) j["operations"].push_back(OperationJson(op, v));
  for (const Param& p : c.params) j["params"].push_back(ParamJson(p));
  for (const Output& o : c.outputs) {
    j["outputs"].push_back({{"name", o.name},
                            {"shape", o.shape},
                            {"dtype", o.dtype},
                            {"doc", o.doc},
                            {"only_if", o.only_if},
                            {"layout", o.layout},
                            {"may_alias", o.may_alias},
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

}  // namespace

std::string_view OpKind(std::string_view id) {
  struct Kind {
    std::string_view first, kind;
  };
  static constexpr auto kKinds = std::to_array<Kind>({{"tokenize", "tokenization"},
                                                      {"sampling", "sampling"},
                                                      {"reduce", "communication"},
                                                      {"quantize", "prepost"},
                                                      {"dequantize", "prepost"},
                                                      {"convert", "prepost"},
                                                      {"kv", "prepost"}});
  for (const Kind& k : kKinds) {
    if (id.substr(0, id.find('.')) == k.first) return k.kind;
  }
  return "tensor";
}

std::string Engine::Contracts() const {
  Json j = Json::array();
  for (const auto& op : operations()) j.push_back(ContractJson(*op));
  return Dump(j);
}

}  // namespace lz
