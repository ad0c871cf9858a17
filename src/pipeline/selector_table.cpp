#include "pipeline/selector_table.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "core/number_text.h"
#include "pipeline/selector.h"
#include "platform/device.h"

namespace lz {
namespace {

constexpr int64_t kMin32 = std::numeric_limits<int32_t>::min(), kMax32 = std::numeric_limits<int32_t>::max();

// The conditions that separate the values of one variable in a tree.
std::vector<Constraint> ConditionsOf(const table::View& view, const Operation& op, const table::Tree& tree,
                                     uint32_t variable, std::vector<int64_t>* set) {
  const std::string_view name = view.VariableName(tree, variable);
  const auto field = op.FindField(name);
  std::vector<Constraint> conditions;
  if (!field) {
    Constraint condition;
    if (PredicateOf(name, &condition, set)) conditions.push_back(condition);
    return conditions;
  }
  conditions.push_back({name, Rel::kEq, 0});  // an exact field; also the row that reads the value
  if (!op.fields()[*field].is_range()) return conditions;
  conditions.pop_back();
  const auto walk = [&](const auto& self, uint32_t child) -> void {
    const table::Node* const node = child & table::kLeafBit ? nullptr : view.node(child);
    if (!node || node->variable > variable) return;
    for (const table::Edge& edge : view.EdgesOf(*node)) {
      if (node->variable < variable) {
        self(self, edge.child);
        continue;
      }
      if (edge.lo > kMin32) conditions.push_back({name, Rel::kGe, edge.lo});
      if (edge.hi < kMax32) conditions.push_back({name, Rel::kGe, int64_t{edge.hi} + 1});
    }
  };
  walk(walk, tree.root);
  if (conditions.empty()) conditions.push_back({name, Rel::kGe, kMin32 + 1});
  std::ranges::sort(conditions, {}, &Constraint::operand);
  const auto same = [](const Constraint& a, const Constraint& b) { return a.operand == b.operand; };
  conditions.erase(std::unique(conditions.begin(), conditions.end(), same), conditions.end());
  return conditions;
}

}  // namespace

std::string PredicateName(const Operation& op, const Predicate& p) {
  std::string text = p.expression.text() + " " + std::string(RelText(p.rel)) + " ";
  if (p.fact >= 0) return text + op.fields()[size_t(p.fact)].name;
  if (p.rel != Rel::kInSet) return text + std::to_string(p.operand);
  std::string values;
  for (int64_t v : p.set) values += (values.empty() ? "" : ",") + std::to_string(v);
  return text + "{" + values + "}";
}

bool PredicateOf(std::string_view name, Constraint* c, std::vector<int64_t>* set) {
  const size_t last = name.rfind(' ');
  if (last == name.npos) return false;
  const std::string_view right = name.substr(last + 1);
  std::string_view left = name.substr(0, last);
  bool found = false;
  for (size_t rel = 0; rel <= size_t(Rel::kLacksBits) && !found; ++rel) {
    const std::string_view text = RelText(Rel(rel));
    found = left.size() > text.size() + 1 && left.ends_with(text) && left[left.size() - text.size() - 1] == ' ';
    if (!found) continue;
    c->rel = Rel(rel) == Rel::kInMask ? Rel::kInSet : Rel(rel);
    left.remove_suffix(text.size() + 1);
  }
  c->field = left;
  const auto number = [](std::string_view text, int64_t* value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    return error == std::errc() && end == text.data() + text.size();
  };
  if (!found || right.empty()) return false;
  if (right.front() != '{') {
    if (c->rel == Rel::kInSet) c->rel = Rel::kInMask;  // a set has braces
    if (!number(right, &c->operand)) c->fact = right;
    return true;
  }
  std::string_view rest = right.substr(1, right.size() - 2);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    if (!number(rest.substr(0, comma), &set->emplace_back())) return false;
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
  }
  c->set = *set;
  return c->rel == Rel::kInSet;
}

OperationTable::Found OperationTable::Find(const BoundCall& call, int variant) const {
  if (size_t(variant) >= variants_.size() || call.cast_inputs) return {};  // a table has no calls of mixed dtypes
  const OfVariant& of = variants_[size_t(variant)];
  if (!of.tree) return {};
  const auto value = [&](uint32_t variable) -> int64_t {
    if (variable >= of.variables.size()) return kMax32 + 1;  // in no edge
    const Variable& v = of.variables[variable];
    return v.is_predicate ? int64_t{RowHolds(call, v.row, {})} : RowValue(call, v.row, {});
  };
  const table::Leaf* const leaf = file_->view().Find(*of.tree, value);
  if (!leaf) return {};
  const auto kernel = of.kernels.find(leaf->kernel);
  return {kernel == of.kernels.end() ? nullptr : kernel->second, leaf->us, leaf->plan};
}

std::shared_ptr<const OperationTable> TableInForce::For(Registry& registry, const Operation& op) {
  const uint64_t changes = registry.num_changes();
  std::lock_guard lock(mutex_);
  if (changes != changes_) {
    parts_.clear();
    devices_.clear();
    changes_ = changes;
  }
  if (const auto known = parts_.find(&op); known != parts_.end()) return known->second;
  auto part = std::make_shared<OperationTable>();
  part->file_ = file_;
  const table::View& view = file_->view();
  for (const Variant& variant : op.contract().variants) {
    OperationTable::OfVariant& of = part->variants_.emplace_back();
    const table::Tree* const tree = view.FindTree(variant.id);
    for (uint32_t v = 0; tree && v < tree->num_variables && part->problem_.ok(); ++v) {
      std::vector<int64_t> set;
      const auto conditions = ConditionsOf(view, op, *tree, v, &set);
      auto rows = conditions.empty() ? Status(StatusCode::kConfig, {.field = file_->path(),
                                                                    .wanted = "variables of " + std::string(variant.id),
                                                                    .got = std::string(view.VariableName(*tree, v))})
                                     : registry.AddThresholds(op, conditions);
      if (!rows.ok()) {
        part->problem_ = rows.TakeStatus();
        break;
      }
      of.variables.push_back({(**rows)[0], (**rows)[0].predicate >= 0});
      part->held_.push_back(std::move(*rows));
    }
    if (!part->problem_.ok()) of.variables.clear();
    of.tree = part->problem_.ok() ? tree : nullptr;
  }
  for (const KernelEntry* kernel : registry.Kernels(&op)) {
    for (uint32_t s = 0; !view.Name(s).empty(); ++s) {
      if (view.Name(s) == kernel->id) part->variants_[kernel->variant].kernels[s] = kernel;
    }
  }
  parts_[&op] = part;
  return part;
}

TableUse TableInForce::UseFor(const Registry& registry, const Policy& policy, const Device& device, int32_t index) {
  if (policy.selection_hash != selection_hash_ || (!tp_invariant_ && policy.tp_size != tp_size_)) {
    return TableUse::kOtherPolicy;
  }
  {
    std::lock_guard lock(mutex_);
    const auto known = devices_.find(index);
    if (known != devices_.end() && changes_ == registry.num_changes()) {
      return known->second ? TableUse::kUsed : TableUse::kStale;
    }
  }
  const bool is_of = is_of_(device);
  std::lock_guard lock(mutex_);
  devices_[index] = is_of;
  return is_of ? TableUse::kUsed : TableUse::kStale;
}

void TableInForce::Forget() {
  std::lock_guard lock(mutex_);
  devices_.clear();
}

Status TableInForce::problem() const {
  std::lock_guard lock(mutex_);
  for (const auto& [op, part] : parts_) {
    if (!part->problem_.ok()) return Status(part->problem_.code(), part->problem_.parts());
  }
  return {};
}

void Selector::SetTable(std::shared_ptr<TableInForce> table) {
  {
    std::lock_guard lock(table_mutex_);
    table_.swap(table);
  }
  Invalidate(EpochKind::kPolicy);
}

std::shared_ptr<TableInForce> Selector::table() const {
  std::lock_guard lock(table_mutex_);
  return table_;
}

namespace {
thread_local bool t_ignores_table = false;
}

void Selector::IgnoreTable(bool ignore) { t_ignores_table = ignore; }

Selector::TablePart Selector::TableFor(const BoundCall& call) {
  TablePart found{t_ignores_table ? nullptr : table(), nullptr};
  if (found.table) found.part = found.table->For(registry_, *call.op);
  return found;
}

const KernelEntry* Selector::FromTable(const Request& r, const OperationPolicy& policy, const TablePart& table,
                                       SelectionReport* report) const {
  report->table_path = table.table->file().path();
  report->table = table.table->UseFor(registry_, *policy.policy, context_.device(r.device), r.device);
  if (report->table != TableUse::kUsed) return nullptr;
  report->table_found = table.part->Find(r, report->variant);
  if (!report->table_found.kernel) report->table = TableUse::kOutside;
  return report->table_found.kernel;
}

}  // namespace lz
