#include "pipeline/request.h"

#include <algorithm>
#include <string>

#include "pipeline/request_facts.h"
#include "pipeline/request_memory.h"

namespace lz {
namespace {

std::string ShapeText(const lz_tensor& t) {
  std::string text = "[";
  for (int32_t i = 0; i < t.ndim; ++i) text += (i ? ", " : "") + std::to_string(t.shape[i]);
  return text + "]";
}
std::string DTypesText(DTypeMask mask) {
  std::string text;
  for (size_t i = 1; i < kDTypes.size(); ++i) {
    if (mask >> i & 1) text += (text.empty() ? "" : ", ") + std::string(kDTypes[i].name);
  }
  return text;
}
// Also names dtypes that no operation takes.
std::string DTypeText(const lz_tensor& t) {
  const DType dtype = DTypeOf(t);
  if (dtype != DType::kUnknown) return std::string(Info(dtype).name);
  const std::string bits = std::to_string(t.dtype.bits);
  return t.dtype.code == 5 ? "complex" + bits : "DLPack type " + std::to_string(t.dtype.code) + " of " + bits + " bits";
}
std::string_view DeviceTypeText(int32_t type) {
  switch (type) {
    case 1: return "cpu";
    case 2: return "cuda";
    case 10: return "rocm";
    case 14: return "oneapi";
    default: return "device";
  }
}

Status Invalid(const BoundCall& r, ErrorParts parts) {
  parts.field.insert(0, std::string(r.op->name()) + ": ");
  return Status(StatusCode::kInvalidRequest, std::move(parts));
}
Status Invalid(const BoundCall& r, std::string_view field, std::string wanted, std::string got, std::string fix = {}) {
  return Invalid(r, {std::string(field), std::move(wanted), std::move(got), std::move(fix)});
}

// Replaces the view of a tensor with a layout by one in the contract's order of axes.
void Permute(BoundCall& r, size_t i, std::span<const uint8_t> physical_of) {
  lz_tensor& t = r.tensors[i];
  int64_t* shape = r.views[i].data();
  if (t.ndim != int32_t(physical_of.size()) || t.shape == shape) return;  // left to the rank check, or bound before
  int64_t* strides = shape + kMaxRank;
  for (size_t a = 0; a < physical_of.size(); ++a) {
    shape[a] = t.shape[physical_of[a]];
    strides[a] = t.strides[physical_of[a]];
  }
  t.shape = shape;
  t.strides = strides;
}

std::string TensorText(const Param& p) {
  return p.shape == "*" ? "a tensor of any shape" : "a tensor [" + std::string(p.shape) + "]";
}
std::string ScalarText(const Param& p) {
  switch (p.kind) {
    case ParamKind::kInt: return "an integer";
    case ParamKind::kBool: return "True or False";
    case ParamKind::kChoice: return "one of " + std::string(p.choices);
    default: return "a number";
  }
}
// The error for a missing argument, in a language's usual words.
Status Missing(const BoundCall& r, const Param& p, std::string wanted) {
  return Status(StatusCode::kWrongType,
                {.field = std::string(r.op->name()) + ": missing argument " + std::string(p.name),
                 .wanted = std::move(wanted),
                 .got = "nothing"});
}

struct Binder {
  BoundCall& r;
  const Operation& op;
  int leading_input = -1;  // the input that bound "..." first
  uint32_t bound = 0;      // axes

  Status Tensor(size_t i) {
    const Param& p = op.input(i);
    const lz_tensor& t = r.tensors[i];
    if (t.ndim < 0) {
      if (p.optional) return {};
      return Missing(r, p, TensorText(p));
    }
    const DType dtype = DTypeOf(t);
    const bool taken = p.dtypes >> int(dtype) & 1;
    if (!taken) return Invalid(r, p.name, DTypesText(p.dtypes), DTypeText(t), "convert the tensor");
    if (op.same_dtype(i) >= 0 && !op.promotes(i)) {
      const lz_tensor& other = r.tensors[size_t(op.same_dtype(i))];
      if (other.ndim >= 0 && DTypeOf(other) != dtype) {
        return Invalid(r, p.name,
                       "the dtype of " + std::string(p.same_dtype_as) + ", " + std::string(Info(DTypeOf(other)).name),
                       std::string(Info(dtype).name), "convert one of them");
      }
    }
    if (t.ndim > kMaxRank) return Invalid(r, p.name, "at most 8 axes", std::to_string(t.ndim));
    return Shape(i, p, t);
  }

  Status Shape(size_t i, const Param& p, const lz_tensor& t) {
    const ShapeProgram& program = op.input_shapes()[i];
    if (program.any_rank) return {};
    const int32_t named = int32_t(program.dims.size());
    const bool rank_ok = program.leading ? t.ndim >= named : p.broadcast ? t.ndim <= named : t.ndim == named;
    if (!rank_ok) return Mismatch(p, t);
    const int32_t lead = t.ndim - named;  // negative: a broadcast parameter without its first axes
    if (program.leading) LZ_RETURN_IF_ERROR(Leading(i, p, t, lead));
    for (int32_t d = std::max(0, -lead); d < named; ++d) {
      const Dim& dim = program.dims[size_t(d)];
      const int64_t size = t.shape[d + lead];
      if (dim.kind != Dim::Kind::kAxis) continue;
      int64_t& axis = r.variables[size_t(dim.axis)];
      if (p.broadcast && size == 1) continue;
      if (!(bound >> dim.axis & 1)) {
        bound |= 1u << dim.axis;
        axis = size;
      } else if (axis != size) {
        return Mismatch(p, t);
      }
    }
    return {};
  }

  Status Leading(size_t i, const Param& p, const lz_tensor& t, int32_t lead) {
    if (leading_input < 0) {
      leading_input = int(i);
      int64_t product = 1;
      for (int32_t d = 0; d < lead; ++d) product *= t.shape[d];
      r.variables[size_t(op.leading_axis())] = product;
      return {};
    }
    const lz_tensor& first = r.tensors[size_t(leading_input)];
    const int32_t first_lead = first.ndim - int32_t(op.input_shapes()[size_t(leading_input)].dims.size());
    if (lead != first_lead || !std::equal(t.shape, t.shape + lead, first.shape)) return Mismatch(p, t);
    return {};
  }

  // Checks expressions after every name is bound.
  Status Expressions(size_t i) {
    const ShapeProgram& program = op.input_shapes()[i];
    const lz_tensor& t = r.tensors[i];
    if (t.ndim < 0 || program.any_rank) return {};
    const int32_t lead = t.ndim - int32_t(program.dims.size());
    for (size_t d = 0; d < program.dims.size(); ++d) {
      const Dim& dim = program.dims[d];
      if (dim.kind != Dim::Kind::kExpression || int32_t(d) + lead < 0) continue;
      const int64_t wanted = op.expressions()[size_t(dim.expression)].Evaluate(r.variables.data());
      if (t.shape[int32_t(d) + lead] != wanted) return Mismatch(op.input(i), t);
    }
    return {};
  }

  // Bindings view such tensors on these axes in calls by the function's own name; other callers reshape them.
  std::string FixOf(const Param& p, const lz_tensor& t) const {
    const std::string function = "layerzero." + std::string(op.name());
    if (p.batched_rank > 0 && t.ndim != p.batched_rank) {
      return "give it one batch axis; Python's " + function + " takes any number of them";
    }
    if (op.fold_scalar() >= 0 && (t.ndim > 1 || r.scalars[size_t(op.fold_scalar())].given)) {
      return "flatten the normalised axes of all tensors to one; Python's " + function +
             " takes several as normalized_shape";
    }
    return op.layout_names().size() > 1 ? "see also layout=" : "";
  }

  Status Mismatch(const Param& p, const lz_tensor& t) {
    std::string wanted = "[" + std::string(p.shape) + "]";
    std::string known;
    for (size_t a = 0; a < op.axes().size(); ++a) {
      if (!(bound >> a & 1)) continue;
      known += (known.empty() ? "" : ", ") + op.axes()[a] + " = " + std::to_string(r.variables[a]);
    }
    if (!known.empty()) wanted += " with " + known;
    if (p.broadcast) wanted += " (each axis may be 1, first axes may be missing)";
    return Invalid(r, p.name, wanted, ShapeText(t), FixOf(p, t));
  }
};

// The smallest float dtype that holds both; kUnknown: none does.
DType Promote(DType a, DType b) {
  if (a == b) return a;
  if (!(kFloats >> int(a) & kFloats >> int(b) & 1)) return DType::kUnknown;
  return a == DType::kF64 || b == DType::kF64 ? DType::kF64 : DType::kF32;
}

// The dtype that tensors which may mix dtypes have after a plan's casts.
Status Promotion(BoundCall& r) {
  const Operation& op = *r.op;
  r.promoted = DType::kUnknown;
  r.cast_inputs = 0;
  if (!op.any_promotes()) return {};
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    if (!op.promotes(i) || r.tensors[i].ndim < 0) continue;
    const DType dtype = DTypeOf(r.tensors[i]);
    const DType both = r.promoted == DType::kUnknown ? dtype : Promote(r.promoted, dtype);
    if (both == DType::kUnknown) {
      return Invalid(r, op.input(i).name, "a dtype that promotes with " + std::string(Info(r.promoted).name),
                     std::string(Info(dtype).name), "convert one of them");
    }
    r.promoted = both;
  }
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    const bool other = op.promotes(i) && r.tensors[i].ndim >= 0 && DTypeOf(r.tensors[i]) != r.promoted;
    r.cast_inputs |= uint32_t{other} << i;
  }
  if (r.cast_inputs == 0) r.promoted = DType::kUnknown;
  return {};
}

Status OneDevice(BoundCall& r) {
  bool first = true;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    const lz_tensor& t = r.tensors[i];
    if (t.ndim < 0) continue;
    if (first) {
      r.where = t.device;
      first = false;
    } else if (t.device.type != r.where.type || t.device.id != r.where.id) {
      const auto text = [](lz_device d) { return std::string(DeviceTypeText(d.type)) + ":" + std::to_string(d.id); };
      return Invalid(r, r.op->input(i).name, "a tensor on " + text(r.where) + " like the others",
                     "one on " + text(t.device), "move it");
    }
  }
  return {};
}

// A tensor that is written in place must have no element twice and share none with another tensor.
Status Written(const BoundCall& r) {
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    const lz_tensor& t = r.tensors[i];
    if (!(r.op->mutated_inputs() >> i & 1) || t.ndim < 0) continue;
    if (RepeatsMemory(t)) {
      return Invalid(r, r.op->input(i).name, "memory for each element: it is written", "one memory for several",
                     "clone it");
    }
    for (size_t o = 0; t.data && o < r.op->num_inputs(); ++o) {  // a description without data has no memory
      if (o == i || r.tensors[o].ndim < 0 || !SharesMemory(t, r.tensors[o])) continue;
      return Invalid(r, r.op->input(i).name, "memory of its own: it is written",
                     "memory of " + std::string(r.op->input(o).name), "pass another tensor");
    }
  }
  return {};
}

// True if the caller passed a value that differs from the contract's default.
bool DiffersFromDefault(const Param& p, const lz_scalar& s) {
  if (!s.given) return false;
  if (!p.has_default) return true;
  return p.kind == ParamKind::kFloat ? s.value.f != p.float_default : s.value.i != p.int_default;
}

// Checks the scalar that repeats the size of an axis: a mismatch is an error of the caller. Kernels need not know it.
Status Folded(BoundCall& r) {
  const auto i = size_t(r.op->fold_scalar());
  const Param& p = r.op->scalar(i);
  lz_scalar& s = r.scalars[i];
  if (!s.given) return {};
  const int64_t size = r.variables[size_t(r.op->fold_axis())];
  if (s.value.i != size) {
    return Invalid(r, p.name, "the size of input's last axis, " + std::to_string(size), std::to_string(s.value.i),
                   "pass input.shape[-1]; Python's layerzero." + std::string(r.op->name()) +
                       " takes the sizes of several last axes as a tuple");
  }
  if (p.optional) s = {};
  if (p.optional) r.scalars_given &= ~int32_t(1u << r.op->scalar_given_bit(i));
  return {};
}

// Fills defaults; sets the "given" bits of the facts.
Status Scalars(BoundCall& r) {
  const Operation& op = *r.op;
  r.scalars_given = 0;
  for (size_t i = 0; i < op.num_scalars(); ++i) {
    const Param& p = op.scalar(i);
    lz_scalar& s = r.scalars[i];
    if (DiffersFromDefault(p, s)) r.scalars_given |= int32_t(1u << op.scalar_given_bit(i));
    if (!s.given && p.has_default) {
      if (p.kind == ParamKind::kFloat) {
        s.value.f = p.float_default;
      } else {
        s.value.i = p.int_default;
      }
      s.given = 1;
    }
    if (!s.given && !p.optional) return Missing(r, p, ScalarText(p));
    if (p.kind != ParamKind::kFloat && s.given) r.variables[kMaxAxes + i] = s.value.i;
  }
  return op.fold_scalar() < 0 ? Status() : Folded(r);
}

DType OutputDType(const BoundCall& r, const Output& output) {
  if (!output.dtype_choice.empty()) {
    const auto i = r.op->ScalarIndex(output.dtype_choice);
    if (i && r.scalars[*i].given) {
      const std::string_view choices = r.op->scalar(*i).choices;
      return DTypeFromName(
          ChoiceName(output.choice_dtypes.empty() ? choices : output.choice_dtypes, r.scalars[*i].value.i));
    }
  }
  if (const auto i = r.op->InputIndex(output.dtype)) return EffectiveDType(r, *i);
  return DTypeFromName(output.dtype);
}

// True if the parameter that outputs depend on is true or given.
bool OutputCondition(const BoundCall& r) {
  if (r.op->output_condition() < 0) return false;
  const std::string_view name = r.op->contract().params[size_t(r.op->output_condition())].name;
  if (const auto i = r.op->InputIndex(name)) return r.tensors[*i].ndim >= 0;
  const lz_scalar& flag = r.scalars[*r.op->ScalarIndex(name)];
  return flag.given && flag.value.i != 0;
}

int64_t Evaluate(const BoundCall& r, const Dim& dim) {
  return dim.kind == Dim::Kind::kAxis ? r.variables[size_t(dim.axis)]
                                      : r.op->expressions()[size_t(dim.expression)].Evaluate(r.variables.data());
}

// See ShapeProgram. The contract refuses axes that the blocks do not divide.
void Blocks(const BoundCall& r, const ShapeProgram& program, OutputShape* shape) {
  const lz_tensor& t = r.tensors[size_t(program.blocks_of)];
  const int64_t rows = Evaluate(r, program.dims[0]), columns = Evaluate(r, program.dims[1]);
  const lz_scalar* axis = program.blocks_axis >= 0 ? &r.scalars[size_t(program.blocks_axis)] : nullptr;
  shape->ndim = t.ndim;
  for (int32_t i = 0; i < t.ndim; ++i) {
    const int64_t block = i + 1 == t.ndim ? columns : i + 2 == t.ndim ? rows : 1;
    if (axis && axis->given) {
      shape->shape[i] = i == axis->value.i ? t.shape[i] : 1;
    } else {
      shape->shape[i] = columns <= 0 || block <= 0 ? 1 : t.shape[i] / block;
    }
  }
}

// The sizes of an output in the contract's order of axes.
Status Sizes(const BoundCall& r, const Output& output, const ShapeProgram& program, int leading_input,
             OutputShape* shape) {
  if (program.choice >= 0) {
    const auto chosen = size_t(r.scalars[size_t(program.choice)].value.i);
    return Sizes(r, output, program.alternatives[chosen], leading_input, shape);
  }
  if (program.blocks_of >= 0) {
    Blocks(r, program, shape);
    return {};
  }
  int32_t n = 0;
  if (program.leading && leading_input >= 0) {
    const lz_tensor& t = r.tensors[size_t(leading_input)];
    n = t.ndim - int32_t(r.op->input_shapes()[size_t(leading_input)].dims.size());
    std::copy(t.shape, t.shape + n, shape->shape);
  }
  if (n + int32_t(program.dims.size()) > kMaxRank) return Invalid(r, output.name, "at most 8 axes", "more");
  for (const Dim& dim : program.dims) {
    const int64_t size = Evaluate(r, dim);
    if (size < 0) return Invalid(r, output.name, "a size of at least 0", std::to_string(size));
    shape->shape[n++] = size;
  }
  shape->ndim = n;
  return {};
}

// Strides are products of sizes, including those of empty axes (taken as 1).
Status Addressable(const BoundCall& r, const Output& output, const OutputShape& shape) {
  int64_t bytes = ByteSize(shape.dtype);
  for (int32_t i = 0; i < shape.ndim; ++i) {
    if (!__builtin_mul_overflow(bytes, std::max<int64_t>(1, shape.shape[i]), &bytes)) continue;
    return Invalid(r, output.name, "less than 2^63 bytes", "sizes whose product is more");
  }
  return {};
}

Status Outputs(BoundCall& r, int leading_input) {
  const Operation& op = *r.op;
  const bool condition = OutputCondition(r);
  for (size_t o = 0; o < op.num_outputs(); ++o) {
    const Output& output = op.contract().outputs[o];
    OutputShape& shape = r.outputs[o];
    shape.ndim = -1;
    if (!output.Present(condition)) continue;
    shape.dtype = OutputDType(r, output);
    LZ_RETURN_IF_ERROR(Sizes(r, output, op.output_shapes()[o], leading_input, &shape));
    LZ_RETURN_IF_ERROR(Addressable(r, output, shape));
    std::copy(shape.shape, shape.shape + shape.ndim, shape.physical);
    if (output.layout && r.layout > 0) {
      const auto& physical_of = op.layouts()[size_t(r.layout)];
      for (size_t a = 0; a < physical_of.size(); ++a) shape.physical[physical_of[a]] = shape.shape[a];
    }
  }
  return {};
}

}  // namespace

Status Bind(BoundCall& r, const LayoutRules& rules) {
  const Operation& op = *r.op;
  if (r.layout == kDetectLayout) LZ_RETURN_IF_ERROR(DetectLayout(r, rules));
  if (r.layout < 0 || (r.layout > 0 && size_t(r.layout) >= op.layouts().size())) {
    return Invalid(r, "layout", "an index of the contract's layouts", std::to_string(r.layout));
  }
  if (r.layout > 0) {
    for (size_t i = 0; i < op.num_inputs(); ++i) {
      if (op.input(i).layout && r.tensors[i].ndim >= 0) Permute(r, i, op.layouts()[size_t(r.layout)]);
    }
  }
  Binder binder{r, op};
  for (size_t i = 0; i < op.num_inputs(); ++i) LZ_RETURN_IF_ERROR(binder.Tensor(i));
  LZ_RETURN_IF_ERROR(OneDevice(r));
  if (op.mutated_inputs()) LZ_RETURN_IF_ERROR(Written(r));
  LZ_RETURN_IF_ERROR(Promotion(r));
  LZ_RETURN_IF_ERROR(Scalars(r));
  for (size_t i = 0; i < op.num_inputs(); ++i) LZ_RETURN_IF_ERROR(binder.Expressions(i));
  if (op.contract().canonicalize) {
    BoundArgs args{r.tensors.data(), r.scalars.data(), r.axes()};
    if (const Status status = op.contract().canonicalize(args); !status.ok()) return Invalid(r, status.parts());
    for (size_t i = 0; i < op.num_scalars(); ++i) {
      const lz_scalar& s = r.scalars[i];
      if (!s.given) r.scalars_given &= ~int32_t(1u << op.scalar_given_bit(i));  // needs no support by kernels
      if (op.scalar(i).kind != ParamKind::kFloat) r.variables[kMaxAxes + i] = s.given ? s.value.i : 0;
    }
  }
  return Outputs(r, binder.leading_input);
}

void BindOutput(BoundCall& r, size_t output, void* data) {
  const size_t i = r.op->num_inputs() + output;
  const OutputShape& shape = r.outputs[output];
  lz_tensor& t = r.tensors[i];
  const DTypeInfo& dtype = Info(shape.dtype);
  t.data = data;
  t.byte_offset = 0;
  t.device = r.where;
  t.ndim = shape.ndim;
  t.dtype = {dtype.dlpack_code, dtype.bits, dtype.lanes};
  t.shape = r.views[i].data();
  t.strides = t.shape + kMaxRank;
  int64_t stride = 1, physical_strides[kMaxRank];
  for (int32_t d = shape.ndim - 1; d >= 0; --d) {
    physical_strides[d] = stride;
    stride *= shape.physical[d];
  }
  const bool permuted = r.layout > 0 && r.op->contract().outputs[output].layout;
  for (int32_t d = 0; d < shape.ndim; ++d) {
    t.shape[d] = shape.shape[d];
    t.strides[d] = permuted ? physical_strides[r.op->layouts()[size_t(r.layout)][size_t(d)]] : physical_strides[d];
  }
}

}  // namespace lz
