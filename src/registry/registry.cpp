#include "registry/registry.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/library_file.h"
#include "base/reclaimer.h"
#include "platform/device.h"
#include "registry/descriptor.h"
#include "registry/implied_rows.h"

// The generated tables list every contract under ops/ and every kernel family under kernels/ and ops/.
#include "kernel_table.inc"
#include "operation_table.inc"

namespace lz {
namespace {

Status Refuse(std::string_view kernel, std::string wanted, std::string got, std::string fix = {}) {
  return Status(StatusCode::kConfig, {.field = "kernel " + std::string(kernel),
                                      .wanted = std::move(wanted),
                                      .got = std::move(got),
                                      .fix = std::move(fix)});
}

bool Same(const Row& a, const Row& b) {
  return a.field_name == b.field_name && a.rel == b.rel && a.operand == b.operand && a.set == b.set;
}

}  // namespace

ReasonCode DefaultCode(const Operation& op, std::string_view name, Rel rel) {
  const bool below = rel == Rel::kGe || rel == Rel::kGt || rel == Rel::kHasBits || rel == Rel::kEq ||
                     rel == Rel::kInMask || rel == Rel::kInSet;
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  if (name.starts_with("device.")) {
    for (const DeviceFieldInfo& info : kDeviceFields) {
      if (name.substr(7) == info.name) return below ? info.below : info.above;
    }
  }
  if (name == "d_qk" || name == "d_v" || name == "head_dim" || name == "d") {
    return rel == Rel::kMultipleOf              ? ReasonCode::kHeadDimAlignment
           : rel == Rel::kLe || rel == Rel::kLt ? ReasonCode::kHeadDimTooLarge
                                                : ReasonCode::kHeadDimInvalid;
  }
  if (name == "s_q" || name == "s_kv") {
    return rel == Rel::kLe || rel == Rel::kLt ? ReasonCode::kSeqTooLong : ReasonCode::kShapeUnsupported;
  }
  if (name == "group" && op.ResolveVariable("h_kv")) {
    return rel == Rel::kEq || rel == Rel::kLe ? ReasonCode::kGqaUnsupported : ReasonCode::kGqaHeadsMismatch;
  }
  if (name == "requires_grad") return ReasonCode::kGradUnsupported;
  if (name == "capturing") return ReasonCode::kCudaGraphUnsafe;
  if (name == "layout") return ReasonCode::kLayoutUnsupported;
  if (name == "policy.deterministic") return ReasonCode::kNonDeterministic;
  if (ends("dtype")) return ReasonCode::kDtypeUnsupported;
  if (ends(".contiguous")) return ReasonCode::kNotContiguous;
  if (ends(".last_dim_stride1")) return ReasonCode::kStrideLastDim;
  if (ends(".columns_dense")) return ReasonCode::kLayoutUnsupported;
  if (ends(".alignment")) return ReasonCode::kAlignment;
  if (name.starts_with("attn_mask.")) return ReasonCode::kAttnMaskUnsupported;
  if (name.starts_with("dropout_p")) return ReasonCode::kDropoutUnsupported;
  if (name.starts_with("scale.") || name.starts_with("sm_scale.")) return ReasonCode::kScaleUnsupported;
  if (ends(".given")) return ReasonCode::kArgumentUnsupported;
  if (ends(".broadcast") || ends(".ndim")) return ReasonCode::kLayoutUnsupported;
  if (ends(".one_element")) return ReasonCode::kShapeUnsupported;
  if (op.ScalarIndex(name)) return ReasonCode::kArgumentUnsupported;
  if (op.ResolveVariable(name)) return ReasonCode::kShapeUnsupported;
  for (const DerivedFact& fact : op.contract().derived) {
    if (fact.name == name) return ReasonCode::kShapeUnsupported;
  }
  return ReasonCode::kConstraintFailed;
}

Registry::Registry(Libraries libraries) : libraries_(std::move(libraries)) {
  for (size_t i = 0; i < std::size(kOperationTable); ++i) {
    const Contract* contract = kOperationTable[i];
    auto op = Operation::Compile(*contract);
    if (!op.ok()) {
      if (startup_.ok()) startup_ = op.TakeStatus();
      continue;
    }
    Operation& compiled = **op;
    compiled.SetPlace(uint16_t(operations_.size()), kOperationPaths[i]);
    by_name_.emplace(contract->name, &compiled);
    for (const Variant& v : contract->variants) by_name_.emplace(v.id, &compiled);
    for (std::string_view alias : contract->aliases) by_name_.emplace(alias, &compiled);
    Building& b = building_.emplace_back();
    b.kernels.resize(contract->variants.size());
    for (const Variant& v : contract->variants) {
      std::vector<Row>& rows = b.variant_conditions.emplace_back();
      for (const Condition& c : v.when) {
        auto row = Resolve(compiled, {c.field, c.rel, c.operand}, &b.predicates);
        if (row.ok()) {
          rows.push_back(std::move(*row));
        } else if (startup_.ok()) {
          startup_ = row.TakeStatus();
        }
      }
    }
    operations_.push_back(std::move(*op));
  }
  std::vector<Registration> all;
  for (const KernelFamily* family : kKernelTable) {
    for (const KernelSpec& spec : *family) all.push_back({&spec, {}, {}});
  }
  Status registered = Register(all);
  if (!registered.ok() && startup_.ok()) startup_ = std::move(registered);
  for (const auto& op : operations_) {
    std::lock_guard lock(mutex_);
    PublishState(*op);
  }
}

Status Registry::CheckLibraries() const {
  std::lock_guard lock(mutex_);
  std::set<std::string> sources;
  for (const KernelEntry& k : entries_) {
    if (k.spec.open) sources.insert(k.source);
  }
  for (const auto& [name, path] : libraries_) {
    if (sources.contains(name)) continue;
    std::string wanted;
    for (const std::string& source : sources) wanted += (wanted.empty() ? "" : ", ") + source;
    return Status(StatusCode::kConfig,
                  {.field = "LAYERZERO_LIBRARIES", .wanted = wanted, .got = "'" + name + "'", .fix = "remove it"});
  }
  return {};
}

const Operation* Registry::Find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : at->second;
}

int Registry::VariantIndex(const Operation& op, std::string_view id) {
  const auto& variants = op.contract().variants;
  for (size_t i = 0; i < variants.size(); ++i) {
    if (variants[i].id == id) return int(i);
  }
  return -1;
}

Result<Row> Registry::Resolve(const Operation& op, const Constraint& c, std::vector<Predicate>* predicates) {
  Row row;
  row.field_name = std::string(c.field);
  row.rel = c.rel;
  row.operand = c.operand;
  row.set.assign(c.set.begin(), c.set.end());
  row.code = c.code == ReasonCode::kAuto ? DefaultCode(op, c.field, c.rel) : c.code;
  if (c.field.ends_with(".contiguous") || c.field.ends_with(".last_dim_stride1")) {
    const auto input = op.InputIndex(c.field.substr(0, c.field.rfind('.')));
    // A write in place would go to the copy.
    if (input && !op.input(*input).mutated) row.contiguous_input = int16_t(*input);
  }
  const std::optional<uint16_t> field = op.FindField(c.field);
  const auto fits = [](int64_t v) {
    return v > std::numeric_limits<int32_t>::min() && v < std::numeric_limits<int32_t>::max();
  };
  if (field) {
    row.field = *field;
    const Field& f = op.fields()[*field];
    const bool range = f.home == FieldHome::kSlot && f.mask == -1;
    const bool awkward = c.rel == Rel::kMultipleOf || c.rel == Rel::kHasBits || !fits(c.operand) ||
                         std::any_of(row.set.begin(), row.set.end(), [&](int64_t v) { return !fits(v); });
    if (!range || !awkward) return row;
  }
  // No slot represents it, so its truth becomes one bit.
  auto expression = Expression::Parse(c.field, [&](std::string_view n) -> std::optional<int> {
    if (auto v = op.ResolveVariable(n)) return v;
    for (size_t i = 0; i < op.contract().derived.size(); ++i) {
      if (op.contract().derived[i].name == n) return int(kMaxAxes + kMaxScalars + i);
    }
    return std::nullopt;
  });
  if (!expression.ok()) {
    return Status(StatusCode::kConfig,
                  {.field = std::string(c.field),
                   .wanted = "a field of " + std::string(op.name()) + " or an expression of its axes",
                   .got = "'" + std::string(c.field) + "'",
                   .fix = "see the fields in the operation's page"});
  }
  for (size_t i = 0; i < predicates->size(); ++i) {
    const Predicate& p = (*predicates)[i];
    if (p.expression.text() == c.field && p.rel == c.rel && p.operand == c.operand && p.set == row.set) {
      row.predicate = int16_t(i);
      return row;
    }
  }
  if (predicates->size() == 64) {
    return Status(StatusCode::kConfig,
                  {.field = std::string(c.field), .wanted = "at most 64 predicates in an operation"});
  }
  row.predicate = int16_t(predicates->size());
  predicates->push_back({std::move(*expression), c.rel, c.operand, row.set});
  return row;
}

Status Registry::Prepare(const Registration& r, KernelEntry* entry, std::vector<Predicate>* predicates) {
  const KernelSpec& spec = *r.spec;
  entry->op = Find(spec.operation);
  if (!entry->op) {
    return Refuse(spec.id, "a known operation", "'" + std::string(spec.operation) + "'", "see `layerzero list`");
  }
  const int variant = VariantIndex(*entry->op, spec.operation);
  if (variant < 0) {
    return Refuse(spec.id, "an operation id such as '" + std::string(entry->op->contract().variants[0].id) + "'",
                  "'" + std::string(spec.operation) + "'");
  }
  if (spec.dtypes == 0 && entry->op->num_inputs() > 0) return Refuse(spec.id, "at least one dtype", "none");
  entry->variant = uint16_t(variant);
  entry->id = std::string(spec.id);
  entry->operation = std::string(spec.operation);
  entry->source = spec.source.empty() ? entry->id.substr(0, entry->id.find('.')) : std::string(spec.source);
  entry->availability = r.availability;
  if (spec.open && r.availability.installed) {
    const auto named = libraries_.find(entry->source);
    const char* why = spec.open(named == libraries_.end() ? nullptr : named->second.c_str());
    if (why) entry->availability = {.installed = false, .detail = why};
    if (!why && named != libraries_.end()) entry->availability.version = LibraryFile(named->second.c_str());
  }
  entry->adapter = r.adapter;
  entry->backend = r.backend;
  entry->origin = "builtin";
  if (r.extras) {
    entry->descriptor = r.extras->descriptor;
    entry->origin = r.extras->origin;
    entry->notes = r.extras->notes;
    entry->transform_cost_hint = r.extras->transform_cost_hint;
    if (!r.extras->workspace_bytes.empty()) {
      auto bytes = Expression::Parse(r.extras->workspace_bytes,
                                     [&](std::string_view name) { return entry->op->ResolveVariable(name); });
      if (!bytes.ok()) return bytes.TakeStatus();
      entry->workspace_bytes = std::move(*bytes);
    }
  }
  entry->spec = spec;
  std::deque<std::string> names;
  std::vector<Constraint> all = ImpliedRows(*entry->op, spec, &names);
  all.insert(all.end(), spec.constraints.begin(), spec.constraints.end());
  for (const Constraint& c : all) {
    auto row = Resolve(*entry->op, c, predicates);
    if (!row.ok()) return Refuse(spec.id, row.status().parts().wanted, row.status().parts().got);
    entry->rows.push_back(std::move(*row));
  }
  return ResolvePreferences(spec, entry, predicates);
}

Status Registry::ResolvePreferences(const KernelSpec& spec, KernelEntry* entry, std::vector<Predicate>* predicates) {
  for (const Preference& preference : spec.preferences) {
    if (preference.when.empty()) return Refuse(spec.id, "at least one condition in each preference", "none");
    if (preference.priority < 0 || preference.priority > 100) {
      return Refuse(spec.id, "a priority from 0 to 100 in each preference", std::to_string(preference.priority));
    }
    auto when = ResolveAll(*entry->op, preference.when, predicates);
    if (!when.ok()) return Refuse(spec.id, when.status().parts().wanted, when.status().parts().got);
    entry->preferences.push_back({std::move(*when), preference.priority});
  }
  return {};
}

Status Registry::Register(std::span<const Registration> kernels) {
  std::lock_guard lock(mutex_);
  std::vector<KernelEntry> prepared;
  std::vector<std::vector<Predicate>> predicates;
  for (const Building& b : building_) predicates.push_back(b.predicates);
  for (const Registration& r : kernels) {
    KernelEntry entry;
    const Operation* op = Find(r.spec->operation);
    std::vector<Predicate> none;
    LZ_RETURN_IF_ERROR(Prepare(r, &entry, op ? &predicates[op->index()] : &none));
    const auto same = [&](const KernelEntry& e) {
      return e.id == entry.id && e.operation == entry.operation && !e.removed;
    };
    if (std::any_of(entries_.begin(), entries_.end(), same) || std::any_of(prepared.begin(), prepared.end(), same)) {
      return Refuse(entry.id, "an id that is new in " + entry.operation, "one that is registered already");
    }
    prepared.push_back(std::move(entry));
  }
  std::vector<bool> touched(operations_.size(), false);
  for (KernelEntry& p : prepared) {
    KernelEntry& e = entries_.emplace_back(std::move(p));
    e.index = uint32_t(entries_.size() - 1);
    e.spec.id = e.id;
    e.spec.operation = e.operation;
    e.spec.source = e.source;
    e.spec.constraints = {};
    e.spec.preferences = {};
    e.spec.accepts = {};
    building_[e.op->index()].kernels[e.variant].push_back(&e);
    touched[e.op->index()] = true;
  }
  for (size_t i = 0; i < touched.size(); ++i) {
    if (!touched[i]) continue;
    building_[i].predicates = std::move(predicates[i]);
    PublishState(*operations_[i]);
  }
  ++changes_;
  return {};
}

size_t Registry::Remove(std::string_view adapter) {
  if (adapter.empty()) return 0;  // native kernels have none
  std::lock_guard lock(mutex_);
  size_t removed = 0;
  for (KernelEntry& e : entries_) {
    if (e.adapter != adapter || e.removed) continue;
    e.removed = true;
    std::erase(building_[e.op->index()].kernels[e.variant], &e);
    PublishState(*e.op);
    ++removed;
  }
  ++changes_;
  return removed;
}

Result<std::vector<Row>> Registry::ResolveAll(const Operation& op, std::span<const Constraint> conditions,
                                              std::vector<Predicate>* predicates) {
  std::vector<Row> rows;
  for (const Constraint& c : conditions) {
    auto row = Resolve(op, c, predicates);
    if (!row.ok()) return row.TakeStatus();
    rows.push_back(std::move(*row));
  }
  return rows;
}

Result<std::vector<Row>> Registry::AddThresholds(const Operation& op, std::span<const Constraint> conditions) {
  std::lock_guard lock(mutex_);
  Building& b = building_[op.index()];
  std::vector<Predicate> predicates = b.predicates;
  auto rows = ResolveAll(op, conditions, &predicates);
  if (!rows.ok()) return rows;
  bool changed = false;
  for (const Row& row : *rows) {
    if (std::ranges::any_of(b.watched, [&](const Row& w) { return Same(w, row); })) continue;
    b.watched.push_back(row);
    changed = true;
  }
  if (changed) {
    b.predicates = std::move(predicates);
    PublishState(op);
  }
  return rows;
}

Status Registry::WatchMeasured(const Watches& watches) {
  std::lock_guard lock(mutex_);
  std::vector<std::vector<Row>> all(building_.size());
  for (const auto& [op, conditions] : watches) {
    std::vector<Predicate> predicates = building_[op->index()].predicates;
    auto rows = ResolveAll(*op, conditions, &predicates);
    if (!rows.ok()) return rows.TakeStatus();
    // Axes and options are fields. A predicate would stay for the life of the process.
    const auto field = [](const Row& row) { return row.predicate < 0; };
    std::ranges::copy_if(*rows, std::back_inserter(all[op->index()]), field);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::ranges::equal(building_[i].measured, all[i], Same)) continue;
    building_[i].measured = std::move(all[i]);
    PublishState(*operations_[i]);
  }
  return {};
}

std::string ProofText(const Backend& backend) {
  if (backend.state.load(std::memory_order_acquire) == Backend::State::kFailed) return backend.error;
  return "its import cannot be tried now: its own probe or a graph capture is running, or there is no Python";
}

Backend& Registry::AddBackend(std::string name, std::string probe) {
  std::lock_guard lock(mutex_);
  Backend& backend = backends_.emplace_back();
  backend.name = std::move(name);
  backend.probe = std::move(probe);
  return backend;
}

std::vector<Backend*> Registry::Backends(std::string_view name) {
  std::lock_guard lock(mutex_);
  std::set<Backend*> found;
  for (const KernelEntry& e : entries_) {
    if (!e.removed && e.backend && e.backend->name == name) found.insert(e.backend);
  }
  return {found.begin(), found.end()};
}

std::vector<std::string> Registry::Adapters(const Backend& backend) const {
  std::lock_guard lock(mutex_);
  std::set<std::string> found;
  for (const KernelEntry& e : entries_) {
    if (!e.removed && e.backend == &backend && e.availability.installed) found.insert(e.adapter);
  }
  return {found.begin(), found.end()};
}

void Registry::PublishState(const Operation& op) {
  Building& b = building_[op.index()];
  auto made = std::make_unique<OperationState>(op, ++generation_);
  OperationState& state = *made;
  state.predicates = b.predicates;
  state.variant_conditions = b.variant_conditions;
  state.kernels = b.kernels;
  for (const auto& rows : b.variant_conditions) {
    for (const Row& row : rows) state.classifier.Add(op, row);
  }
  for (const auto& kernels : b.kernels) {
    for (const KernelEntry* k : kernels) {
      for (const Row& row : k->rows) state.classifier.Add(op, row);
      for (const ResolvedPreference& p : k->preferences) {
        for (const Row& row : p.when) state.classifier.Add(op, row);
      }
    }
  }
  for (const auto* watched : {&b.watched, &b.measured}) {
    for (const Row& row : *watched) state.classifier.Add(op, row);
  }
  state.classifier.Finish();
  op.Publish(&state);
  const OperationState* old = std::exchange(b.state, std::move(made)).release();
  if (old) Reclaimer::Get().Retire([old] { delete old; });
}

const KernelEntry* Registry::FindKernel(std::string_view operation, std::string_view id) const {
  std::lock_guard lock(mutex_);
  for (const KernelEntry& e : entries_) {
    if (e.id == id && !e.removed && (operation.empty() || e.operation == operation || e.op->name() == operation))
      return &e;
  }
  return nullptr;
}

std::vector<const KernelEntry*> Registry::Kernels(const Operation* op) const {
  std::lock_guard lock(mutex_);
  std::vector<const KernelEntry*> found;
  for (const KernelEntry& e : entries_) {
    if (!e.removed && (!op || e.op == op)) found.push_back(&e);
  }
  return found;
}

size_t Registry::num_kernels() const {
  std::lock_guard lock(mutex_);
  return size_t(std::ranges::count(entries_, false, &KernelEntry::removed));
}
std::string Registry::CapabilitiesHash() const {
  std::vector<std::string> lines;
  {
    std::lock_guard lock(mutex_);
    for (const KernelEntry& e : entries_) {
      if (e.removed) continue;
      lines.push_back(e.operation + '|' + e.id + '|' + std::to_string(e.spec.version) + '|' + e.descriptor + '|' +
                      (e.availability.installed ? '1' : '0') + '|' + e.availability.version + '\n');
    }
  }
  std::ranges::sort(lines);
  std::string text;
  for (const std::string& line : lines) text += line;
  return Sha256Hex(text);
}
uint64_t Registry::num_changes() const {
  std::lock_guard lock(mutex_);
  return changes_;
}
const KernelEntry* Registry::kernel(uint32_t index) const {
  std::lock_guard lock(mutex_);
  return index < entries_.size() ? &entries_[index] : nullptr;
}

}  // namespace lz
