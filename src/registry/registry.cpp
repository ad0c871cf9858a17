#include "registry/registry.h"

#include <algorithm>
#include <set>

#include "base/found_library.h"
#include "base/library_file.h"
#include "base/reclaimer.h"
#include "platform/device.h"
#include "registry/implied_rows.h"
#include "registry/refused_libraries.h"

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
  return a.field_name == b.field_name && a.rel == b.rel && a.operand == b.operand && a.set == b.set && a.fact == b.fact;
}

}  // namespace

// Calls `each` for every row that splits the classes of an operation.
template <class Each>
void Registry::ForEachRow(const Building& b, Each&& each) {
  const auto all = [&](const std::vector<Row>& rows) { std::ranges::for_each(rows, each); };
  std::ranges::for_each(b.variant_conditions, all);
  for (const auto& kernels : b.kernels) {
    for (const KernelEntry* k : kernels) {
      all(k->rows);
      for (const ResolvedPreference& p : k->preferences) all(p.when);
      all(k->jit.fields);  // facts are made for what some row reads
      all(k->jit.conditions);
      all(k->jit.never);
    }
  }
  for (const HeldRow& held : b.held) each(held.row);
  all(b.measured);
  all(b.jit);
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

std::map<std::string, RefusedLibrary, std::less<>>& RefusedLibraries() {
  static auto& refused = *new std::map<std::string, RefusedLibrary, std::less<>>;
  return refused;
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
    if (const auto refused = RefusedLibraries().find(entry->source); why && refused != RefusedLibraries().end()) {
      entry->availability = {.installed = false, .code = refused->second.code, .detail = refused->second.why};
    }
    const std::string file = named == libraries_.end() ? FoundLibrary(entry->source) : named->second;
    if (!why && !file.empty()) entry->availability.version = LibraryFile(file.c_str());
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
  if (r.extras) LZ_RETURN_IF_ERROR(ResolveJit(r.extras->jit, entry, predicates));
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
  for (const Building& b : building_) predicates.push_back(LivePredicates(b));
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

std::vector<Predicate> Registry::LivePredicates(const Building& b) {
  uint64_t live = 0;
  const auto mark = [&](const Row& row) {
    if (row.predicate >= 0) live |= uint64_t{1} << row.predicate;
  };
  ForEachRow(b, mark);
  std::vector<Predicate> predicates = b.predicates;
  for (size_t i = 0; i < predicates.size(); ++i) {
    if (!(live >> i & 1)) predicates[i] = {};
  }
  return predicates;
}

Result<Registry::Thresholds> Registry::AddThresholds(const Operation& op, std::span<const Constraint> conditions) {
  std::lock_guard lock(mutex_);
  Building& b = building_[op.index()];
  std::vector<Predicate> predicates = LivePredicates(b);
  auto rows = ResolveAll(op, conditions, &predicates);
  if (!rows.ok()) return rows.TakeStatus();
  bool changed = false;
  for (const Row& row : *rows) {
    const auto known = std::ranges::find_if(b.held, [&](const HeldRow& h) { return Same(h.row, row); });
    changed |= known == b.held.end();
    if (known == b.held.end()) {
      b.held.push_back({row, 1});
    } else {
      ++known->holders;
    }
  }
  if (changed) {
    b.predicates = std::move(predicates);
    PublishState(op);
  }
  return Thresholds(new std::vector<Row>(std::move(*rows)), [this, &op](const std::vector<Row>* held) {
    Release(op, *held);
    delete held;
  });
}

void Registry::Release(const Operation& op, const std::vector<Row>& rows) {
  std::lock_guard lock(mutex_);
  Building& b = building_[op.index()];
  for (const Row& row : rows) {
    --std::ranges::find_if(b.held, [&](const HeldRow& h) { return Same(h.row, row); })->holders;
  }
  if (size_t(std::ranges::count_if(b.held, IsIdle)) > kMaxIdleRows) PublishState(op);
}

Status Registry::ReplaceMeasured(const MeasuredConditions& measured) {
  std::lock_guard lock(mutex_);
  std::vector<std::vector<Row>> all(building_.size());
  for (const auto& [op, conditions] : measured) {
    std::vector<Predicate> predicates = LivePredicates(building_[op->index()]);
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
  std::erase_if(b.held, IsIdle);
  auto made = std::make_unique<OperationState>(op, ++generation_);
  OperationState& state = *made;
  state.predicates = b.predicates;
  state.variant_conditions = b.variant_conditions;
  state.kernels = b.kernels;
  state.jit_ready = b.jit_ready;
  ForEachRow(b, [&](const Row& row) { state.classifier.Add(op, row); });
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
  std::lock_guard lock(mutex_);
  if (capabilities_at_ == changes_) return capabilities_;
  std::vector<std::string> lines;
  for (const KernelEntry& e : entries_) {
    if (e.removed) continue;
    lines.push_back(e.operation + '|' + e.id + '|' + std::to_string(e.spec.version) + '|' + e.descriptor + '|' +
                    (e.availability.installed ? '1' : '0') + '|' + e.availability.version + '\n');
  }
  std::ranges::sort(lines);
  std::string text;
  for (const std::string& line : lines) text += line;
  capabilities_ = Sha256Hex(text);
  capabilities_at_ = changes_;
  return capabilities_;
}
uint64_t Registry::num_changes() const {
  std::lock_guard lock(mutex_);
  return changes_;
}
const KernelEntry* Registry::kernel(uint32_t index) const {
  std::lock_guard lock(mutex_);
  return index < entries_.size() ? &entries_[index] : nullptr;
}
bool Registry::IsRemoved(const KernelEntry& kernel) const {
  std::lock_guard lock(mutex_);
  return kernel.removed;
}

}  // namespace lz
