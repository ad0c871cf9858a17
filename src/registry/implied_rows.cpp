#include "registry/implied_rows.h"

#include <algorithm>

#include "registry/registry.h"

namespace lz {
namespace {

// Rows on the facts of the policy. References are what runs where no other kernel is admissible, so the promises that
// only kernels make do not concern them.
void AddPolicyRows(const Operation& op, const KernelSpec& spec, std::deque<std::string>* names,
                   std::vector<Constraint>* rows) {
  const auto add = [&](PolicyField field, Rel rel, int64_t operand, ReasonCode code) {
    rows->push_back({names->emplace_back(PolicyFieldName(field)), rel, operand, {}, code});
  };
  const auto add_allowed = [&](std::string field, PolicyField fact, ReasonCode code) {
    rows->push_back({.field = names->emplace_back(std::move(field)),
                     .rel = Rel::kInMask,
                     .code = code,
                     .fact = names->emplace_back(PolicyFieldName(fact))});
  };
  if (!spec.reference) {
    if (!spec.tp.is_tp_invariant) add(PolicyField::kTpInvariant, Rel::kEq, 0, ReasonCode::kTpInvarianceRequired);
    const int64_t orders = 1 | int64_t{1} << int(spec.tp.reduction_order);  // "any" among them
    add(PolicyField::kReductionOrder, Rel::kInMask, orders, ReasonCode::kReductionOrderMismatch);
    if (spec.tp.max_tp_size > 0) {
      add(PolicyField::kTpSize, Rel::kLe, spec.tp.max_tp_size, ReasonCode::kTpSizeExceeded);
    }
  }
  for (const std::string_view cache : CachesOf(op)) {
    if (op.same_dtype(*op.InputIndex(cache)) >= 0) continue;  // that of the cache which is compared
    add_allowed(std::string(cache) + ".dtype", PolicyField::kKvDtypes, ReasonCode::kKvCacheDtypeMismatch);
  }
  if (HasCacheLayouts(op)) add_allowed("layout", PolicyField::kKvLayout, ReasonCode::kKvCacheLayoutMismatch);
  if (!QuantFormatsOf(op).empty()) {
    add_allowed("format", PolicyField::kQuantFormats, ReasonCode::kQuantFormatUnsupported);
  }
  const auto classes = op.contract().numerics_classes;
  const auto own = std::ranges::find(classes, spec.numerics);
  if (own != classes.end()) {
    add(PolicyField::kForbidNumerics, Rel::kLacksBits, int64_t{1} << (own - classes.begin()),
        ReasonCode::kPolicyDenied);
  }
}

}  // namespace

std::string_view QuantFormatsOf(const Operation& op) {
  if (!op.FindField("format")) return {};
  for (std::string_view name : {"format", "dtype"}) {
    if (const auto scalar = op.ScalarIndex(name)) return op.scalar(*scalar).choices;
  }
  return {};
}

std::vector<std::string_view> CachesOf(const Operation& op) {
  std::vector<std::string_view> found;
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    if (op.input(i).name.ends_with("cache")) found.push_back(op.input(i).name);
  }
  return found;
}

bool HasCacheLayouts(const Operation& op) { return !CachesOf(op).empty() && !op.layout_names().empty(); }

std::vector<Constraint> ImpliedRows(const Operation& op, const KernelSpec& spec, std::deque<std::string>* names) {
  std::vector<Constraint> rows;
  const auto keep = [&](std::string text) -> std::string_view { return names->emplace_back(std::move(text)); };
  const auto accepted = [&](std::string_view name) {
    return std::any_of(spec.accepts.begin(), spec.accepts.end(),
                       [&](std::string_view a) { return a == "*" || a == name; });
  };
  if (spec.platform != Platform::kAny) {
    rows.push_back({"device.platform", Rel::kEq, int64_t(spec.platform), {}, ReasonCode::kPlatformMismatch});
  }
  if (op.num_inputs() > 0) rows.push_back({"dtype", Rel::kInMask, spec.dtypes, {}, ReasonCode::kDtypeUnsupported});
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    const Param& p = op.input(i);
    const std::string n(p.name);
    if (p.optional && !accepted(p.name)) {
      rows.push_back({keep(n + ".given"), Rel::kEq, 0});  // an absent tensor has no strides
    } else if (spec.strides == Strides::kContiguous) {
      rows.push_back({keep(n + ".contiguous"), Rel::kEq, 1, {}, ReasonCode::kNotContiguous});
    } else if (spec.strides == Strides::kLastDimDense) {
      rows.push_back({keep(n + ".last_dim_stride1"), Rel::kEq, 1, {}, ReasonCode::kStrideLastDim});
    }
  }
  for (size_t i = 0; i < op.num_inputs(); ++i) {
    const Param& p = op.input(i);
    if (!p.index || spec.reference || i == 0) continue;  // `dtypes` refers to the first one
    const std::string field = std::string(p.name) + ".dtype";
    const auto about_it = [&](const Constraint& c) { return c.field == field; };
    if (std::any_of(spec.constraints.begin(), spec.constraints.end(), about_it)) continue;
    const DTypeMask absent = p.optional ? Mask(DType::kUnknown) : 0;
    rows.push_back({keep(field), Rel::kInMask, Mask(DType::kI32) | absent, {}, ReasonCode::kDtypeUnsupported});
  }
  // Adapters of host kernels receive the layout of the call.
  if (spec.strides == Strides::kContiguous && spec.call == CallKind::kNative && !op.layout_names().empty()) {
    rows.push_back({"layout", Rel::kEq, 0, {}, ReasonCode::kLayoutUnsupported});
  }
  for (size_t i = 0; i < op.num_scalars(); ++i) {
    const Param& p = op.scalar(i);
    if (!p.keyword_only || accepted(p.name) || int(i) == op.fold_scalar()) continue;
    // A scalar may share its name with another field ("dtype"): then it only has "<scalar>.given".
    const auto field = op.FindField(p.name);
    const bool own_name = field && op.fields()[*field].param == int16_t(op.scalar_params()[i]);
    if ((p.kind == ParamKind::kBool || p.kind == ParamKind::kChoice) && own_name) {
      rows.push_back({p.name, Rel::kEq, p.int_default});
    } else {
      rows.push_back({keep(std::string(p.name) + ".given"), Rel::kEq, 0});
    }
  }
  if (!spec.cuda_graph_safe) rows.push_back({"capturing", Rel::kEq, 0, {}, ReasonCode::kCudaGraphUnsafe});
  if (!spec.requires_grad) rows.push_back({"requires_grad", Rel::kEq, 0, {}, ReasonCode::kGradUnsupported});
  if (!spec.deterministic) {
    rows.push_back({"policy.deterministic", Rel::kEq, 0, {}, ReasonCode::kNonDeterministic});
  }
  AddPolicyRows(op, spec, names, &rows);
  return rows;
}

}  // namespace lz
