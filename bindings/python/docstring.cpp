#include "docstring.h"

#include <charconv>
#include <cmath>

namespace lz::python {
namespace {

// Floats as Python prints them: 1e-06, 0.0.
std::string FloatText(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  std::string out(text, size_t(end - text));
  return std::isfinite(value) && out.find_first_of(".e") == out.npos ? out + ".0" : out;
}

std::string DefaultText(const Param& p) {
  if (!p.has_default) return p.optional ? "None" : "";
  switch (p.kind) {
    case ParamKind::kFloat: return FloatText(p.float_default);
    case ParamKind::kBool: return p.int_default ? "True" : "False";
    case ParamKind::kChoice: return "'" + std::string(ChoiceName(p.choices, p.int_default)) + "'";
    default: return std::to_string(p.int_default);
  }
}

std::string Signature(const Contract& c, bool layouts, bool seeded) {
  std::string text = std::string(c.name) + "(";
  bool keyword_only = false;
  const auto add = [&](std::string_view name, const std::string& value) {
    if (text.back() != '(') text += ", ";
    text.append(name) += value.empty() ? "" : "=" + value;
  };
  for (const Param& p : c.params) {
    if (p.keyword_only && !keyword_only) add("*", "");
    keyword_only |= p.keyword_only;
    add(p.name, DefaultText(p));
  }
  if (!keyword_only) add("*", "");
  if (layouts) add("layout", "None");
  if (seeded) add("generator", "None");
  add("kernel", "None");
  add("out", "None");
  return text + ")";
}

std::string ShapeText(std::string_view shape) {
  return shape == "*" ? "of any shape" : shape.empty() ? "of one element" : "(" + std::string(shape) + ")";
}

std::string DTypesText(const Param& p) {
  if (!p.same_dtype_as.empty()) return "dtype of " + std::string(p.same_dtype_as);
  if (p.dtypes == kAnyDType) return "any dtype";
  std::string text;
  for (size_t i = 1; i < kDTypes.size(); ++i) {
    if (p.dtypes >> i & 1) (text += text.empty() ? "" : " or ").append(kDTypes[i].name);
  }
  return text;
}

std::string KindText(const Param& p) {
  switch (p.kind) {
    case ParamKind::kTensor: return "tensor " + ShapeText(p.shape) + ", " + DTypesText(p);
    case ParamKind::kFloat: return "float";
    case ParamKind::kBool: return "bool";
    case ParamKind::kChoice: return "one of " + std::string(p.choices);
    default: return "int";
  }
}

std::string OutputText(const Output& o) {
  std::string dtype(o.dtype);
  if (DTypeFromName(dtype) == DType::kUnknown) dtype = "dtype of " + dtype;
  if (!o.dtype_choice.empty()) dtype = "dtype by " + std::string(o.dtype_choice);
  std::string text = std::string(o.name) + ": tensor " + ShapeText(o.shape) + ", " + dtype;
  if (!o.only_if.empty()) {
    text.append(o.only_if.starts_with('!') ? ", without " : ", with ").append(o.Condition());
  }
  return text + ": " + std::string(o.doc);
}

}  // namespace

std::string Docstring(const Contract& c, bool layouts, bool seeded) {
  std::string text = Signature(c, layouts, seeded) + "\n--\n\n";
  text.append(c.summary) += "\n\nDefinition: " + std::string(c.definition) + "\n\nParameters:\n";
  for (const Param& p : c.params) {
    text += "  " + std::string(p.name) + ": " + KindText(p) + ": " + std::string(p.doc) + "\n";
  }
  if (layouts)
    text += "  layout: one of " + std::string(c.layouts) + ": order of the axes; None: found from the tensors\n";
  if (seeded) text += "  generator: torch.Generator of the tensors' device: draws `uniform`; None: the default one\n";
  text += "  kernel: str: id of the one kernel to use; None: the best that is admissible\n";
  text += "  out: tensor or tuple of tensors: memory for the results, of exactly their shape and dtype\n";
  text += c.outputs.empty() ? "\nReturns: None\n" : "\nReturns:\n";
  for (const Output& o : c.outputs) text += "  " + OutputText(o) + "\n";
  text +=
      "\nRaises:\n  InvalidRequestError (a ValueError) or WrongTypeError (a TypeError): the call breaks the contract\n";
  text +=
      "  NoKernelFoundError: no kernel may run, with each kernel's reasons\n  KernelExecutionError: a kernel failed\n";
  return text + "\nSource: " + std::string(c.source);
}

}  // namespace lz::python
