// Contracts as torch schemas.
#include "schema.h"

#include <charconv>

namespace lz::torch_ops {
namespace {

std::string_view Type(ParamKind kind) {
  switch (kind) {
    case ParamKind::kTensor: return "Tensor";
    case ParamKind::kInt: return "SymInt";  // a size may be symbolic while a graph is traced
    case ParamKind::kFloat: return "float";
    case ParamKind::kBool: return "bool";
    case ParamKind::kChoice: return "str";
  }
  return "";
}

std::string Default(const Param& p, bool decides) {
  if (decides) return "True";
  if (!p.has_default) return "None";
  switch (p.kind) {
    case ParamKind::kInt: return std::to_string(p.int_default);
    case ParamKind::kBool: return p.int_default ? "True" : "False";
    case ParamKind::kChoice: return "\"" + std::string(ChoiceName(p.choices, p.int_default)) + "\"";
    case ParamKind::kFloat: {
      char text[32];
      const auto end = std::to_chars(text, text + sizeof(text), p.float_default).ptr;
      std::string number(text, end);
      return number.find_first_of(".e") == number.npos ? number + ".0" : number;
    }
    case ParamKind::kTensor: break;
  }
  return "None";
}

bool HasDefault(const Param& p) { return p.optional || p.has_default; }

TorchOp Overload(const Operation& op, bool condition, std::string_view name) {
  TorchOp t{.op = &op, .overload = std::string(name), .condition = condition, .draws = DrawParamsOf(op)};
  const Contract& c = op.contract();
  const int decides = op.output_condition();
  for (bool keyword_only : {false, true}) {
    for (size_t i = 0; i < c.params.size(); ++i) {
      if (c.params[i].keyword_only != keyword_only) continue;
      // Absent in the one overload and required in the other; a flag is there with the only value that it may have,
      // because TorchScript tells overloads by their arguments alone.
      if (int(i) == decides && !condition) continue;
      t.arguments.push_back(uint8_t(i));
    }
  }
  t.layout = !op.layout_names().empty();
  for (const Output& o : c.outputs) t.num_outputs += o.Present(condition);
  return t;
}

}  // namespace

std::string TorchOp::Name() const {
  return overload.empty() ? std::string(op->name()) : std::string(op->name()) + "." + overload;
}

std::string TorchOp::Schema() const {
  const Contract& c = op->contract();
  std::string text;
  bool keyword_only = false;
  char alias = 'a';
  const auto separate = [&](bool starts_keywords) {
    if (!text.empty()) text += ", ";
    if (starts_keywords && !keyword_only) text += "*, ";
    keyword_only |= starts_keywords;
  };
  for (size_t a = 0; a < arguments.size(); ++a) {
    const Param& p = c.params[arguments[a]];
    separate(p.keyword_only);
    const bool decides = int(arguments[a]) == op->output_condition(),
               required = decides && p.kind == ParamKind::kTensor;
    text += std::string(Type(p.kind));
    if (p.mutated) text += std::string("(") + alias++ + "!)";
    text += (p.optional && !p.has_default && !required ? "? " : " ") + std::string(p.name);
    // A parameter with a default must not precede a positional one without.
    bool last = HasDefault(p) && !required;
    for (size_t b = a; b < arguments.size() && !p.keyword_only; ++b) {
      const Param& later = c.params[arguments[b]];
      last &= later.keyword_only || HasDefault(later);
    }
    if (last) text += "=" + Default(p, decides);
  }
  if (layout) {
    separate(true);
    text += "str layout=\"" + op->layout_names()[0] + "\"";
  }
  std::string outputs = num_outputs ? "Tensor" : "";
  for (size_t o = 1; o < num_outputs; ++o) outputs += ", Tensor";
  return Name() + "(" + text + ") -> " + (num_outputs == 1 ? outputs : "(" + outputs + ")");
}

std::vector<TorchOp> TorchOps(const Engine& engine) {
  std::vector<TorchOp> all;
  for (const auto& op : engine.operations()) {
    all.push_back(Overload(*op, false, ""));
    if (op->output_condition() < 0) continue;
    const Param& decides = op->contract().params[size_t(op->output_condition())];
    std::string_view name = decides.name;
    for (const Output& o : op->contract().outputs) {
      if (decides.kind == ParamKind::kTensor || o.only_if.empty()) continue;
      name = o.name;  // the first
      break;
    }
    all.push_back(Overload(*op, true, name));
  }
  return all;
}

}  // namespace lz::torch_ops
