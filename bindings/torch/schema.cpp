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

std::string Choice(const Param& p, int64_t index) {
  std::string_view rest = p.choices;
  for (; index > 0; --index) rest.remove_prefix(rest.find('|') + 1);
  return std::string(rest.substr(0, rest.find('|')));
}

std::string Default(const Param& p) {
  if (!p.has_default) return "None";
  switch (p.kind) {
    case ParamKind::kInt: return std::to_string(p.int_default);
    case ParamKind::kBool: return p.int_default ? "True" : "False";
    case ParamKind::kChoice: return "\"" + Choice(p, p.int_default) + "\"";
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

TorchOp Overload(const Operation& op, int flag, bool value, std::string_view name) {
  TorchOp t{.op = &op, .overload = std::string(name), .flag = flag, .flag_value = value};
  const Contract& c = op.contract();
  for (bool keyword_only : {false, true}) {
    for (size_t i = 0; i < c.params.size(); ++i) {
      if (c.params[i].keyword_only != keyword_only) continue;
      if (flag >= 0 && op.scalar_params()[size_t(flag)] == i) continue;
      t.arguments.push_back(uint8_t(i));
    }
  }
  t.layout = !op.layout_names().empty();
  for (const Output& o : c.outputs) t.num_outputs += o.only_if.empty() || value;
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
  const auto separate = [&](bool starts_keywords) {
    if (!text.empty()) text += ", ";
    if (starts_keywords && !keyword_only) text += "*, ";
    keyword_only |= starts_keywords;
  };
  for (size_t a = 0; a < arguments.size(); ++a) {
    const Param& p = c.params[arguments[a]];
    separate(p.keyword_only);
    text += std::string(Type(p.kind)) + (p.optional && !p.has_default ? "? " : " ") + std::string(p.name);
    // A default must not stand before a positional parameter that has none.
    bool last = HasDefault(p);
    for (size_t b = a; b < arguments.size() && !p.keyword_only; ++b) {
      const Param& later = c.params[arguments[b]];
      last &= later.keyword_only || HasDefault(later);
    }
    if (last) text += "=" + Default(p);
  }
  if (layout) {
    separate(true);
    text += "str layout=\"" + op->layout_names()[0] + "\"";
  }
  std::string outputs = "Tensor";
  for (size_t o = 1; o < num_outputs; ++o) outputs += ", Tensor";
  return Name() + "(" + text + ") -> " + (num_outputs == 1 ? outputs : "(" + outputs + ")");
}

std::vector<TorchOp> TorchOps(const Engine& engine) {
  std::vector<TorchOp> all;
  for (const auto& op : engine.operations()) {
    int flag = -1;
    std::string_view conditional;
    for (const Output& o : op->contract().outputs) {
      if (o.only_if.empty()) continue;
      for (size_t i = 0; i < op->num_scalars(); ++i) {
        if (op->scalar(i).name == o.only_if) flag = int(i);
      }
      conditional = o.name;
    }
    all.push_back(Overload(*op, flag, false, ""));
    if (flag >= 0) all.push_back(Overload(*op, flag, true, conditional));
  }
  return all;
}

}  // namespace lz::torch_ops
