#include "table/build.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "table/view.h"

namespace lz::table {
namespace {

constexpr size_t kMostEdges = size_t{1} << 22;

class Strings {
 public:
  uint32_t Add(std::string_view text) {
    const auto [at, added] = index_.try_emplace(std::string(text), uint32_t(texts_.size()));
    if (added) texts_.push_back(at->first);
    return at->second;
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::map<std::string, uint32_t> index_;
  std::vector<std::string> texts_;
};

using Entries = std::vector<const Entry*>;

struct Builder {
  const std::string& what;
  Strings strings;
  std::vector<Tree> trees;
  std::vector<uint32_t> variables;
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  std::vector<Leaf> leaves;
  std::map<const Entry*, uint32_t> leaf_of;
  Status problem;

  // Variables that separate most entries come last: what calls of a model share is tested once.
  static std::vector<std::string> OrderOf(const Entries& entries) {
    std::map<std::string, std::set<Interval>> values;
    for (const Entry* e : entries) {
      for (const auto& [name, range] : e->when) values[name].insert(range);
    }
    std::vector<std::string> names;
    for (const auto& [name, ranges] : values) names.push_back(name);
    std::ranges::stable_sort(names, {}, [&](const std::string& name) { return values[name].size(); });
    return names;
  }

  void AddTree(const Entries& entries) {
    const std::vector<std::string> names = OrderOf(entries);
    Tree tree = {strings.Add(entries[0]->operation), 0, uint32_t(variables.size()), uint32_t(names.size())};
    for (const std::string& name : names) variables.push_back(strings.Add(name));
    tree.root = ChildOf(entries, names, 0);
    trees.push_back(tree);
  }

  uint32_t ChildOf(const Entries& entries, const std::vector<std::string>& names, size_t variable) {
    if (!problem.ok() || edges.size() > kMostEdges) return kLeafBit;
    if (variable == names.size()) return LeafOf(entries);
    const auto range_of = [&](const Entry* e) {
      const auto at = e->when.find(names[variable]);
      return at == e->when.end() ? Interval() : at->second;
    };
    std::set<int64_t> starts;
    for (const Entry* e : entries) {
      const Interval r = range_of(e);
      starts.insert(r.lo);
      starts.insert(int64_t{r.hi} + 1);
    }
    struct Part {
      Interval range;
      Entries entries;
    };
    std::vector<Part> parts;
    for (auto at = starts.begin(); std::next(at) != starts.end(); ++at) {
      Part part = {{int32_t(*at), int32_t(*std::next(at) - 1)}, {}};
      std::ranges::copy_if(entries, std::back_inserter(part.entries),
                           [&](const Entry* e) { return range_of(e).Has(part.range.lo); });
      if (part.entries.empty()) continue;
      const bool grows =
          !parts.empty() && parts.back().range.hi + int64_t{1} == part.range.lo && parts.back().entries == part.entries;
      if (grows) {
        parts.back().range.hi = part.range.hi;
      } else {
        parts.push_back(std::move(part));
      }
    }
    if (parts.size() == 1 && parts[0].range == Interval()) return ChildOf(entries, names, variable + 1);
    const auto at = uint32_t(nodes.size());
    const auto first = uint32_t(edges.size());
    nodes.push_back({uint32_t(variable), first, uint32_t(parts.size())});
    edges.resize(edges.size() + parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      const uint32_t child = ChildOf(parts[i].entries, names, variable + 1);
      edges[first + i] = {parts[i].range.lo, parts[i].range.hi, child};
    }
    return at;
  }

  uint32_t LeafOf(const Entries& entries) {
    const Entry& e = *entries[0];
    for (const Entry* other : entries) {
      if (other->kernel == e.kernel) continue;
      problem = Status(StatusCode::kConfig, {.field = what,
                                             .wanted = "one kernel for each call of " + e.operation,
                                             .got = e.kernel + " and " + other->kernel + " for the same ones",
                                             .fix = "make it again with `layerzero solve`"});
    }
    const auto [at, added] = leaf_of.try_emplace(&e, uint32_t(leaves.size()));
    if (added) leaves.push_back({strings.Add(e.kernel), e.plan, e.us});
    return kLeafBit | at->second;
  }

  template <class T>
  static Section Append(std::string* out, const std::vector<T>& members) {
    out->resize((out->size() + 7) / 8 * 8);
    const Section section = {uint32_t(out->size()), uint32_t(members.size())};
    out->append(reinterpret_cast<const char*>(members.data()), members.size() * sizeof(T));
    return section;
  }

  std::string Bytes(const Content& content) const {
    Header header = {};
    std::memcpy(header.magic, kMagic.data(), kMagic.size());
    header.format = kFormat;
    header.num_entries = uint32_t(content.entries.size());
    std::string out(sizeof(Header), '\0');
    header.about = {uint32_t(out.size()), uint32_t(content.about.size())};
    out += content.about;
    std::vector<Text> texts;
    for (const std::string& text : strings.texts()) {
      texts.push_back({uint32_t(out.size()), uint32_t(text.size())});
      out += text;
    }
    header.strings = Append(&out, texts);
    header.trees = Append(&out, trees);
    header.variables = Append(&out, variables);
    header.nodes = Append(&out, nodes);
    header.edges = Append(&out, edges);
    header.leaves = Append(&out, leaves);
    header.bytes = out.size() + sizeof(Checksum);
    std::memcpy(out.data(), &header, sizeof(header));
    const Checksum sum = ChecksumOf(out);
    out.append(reinterpret_cast<const char*>(sum.data()), sum.size());
    return out;
  }
};

}  // namespace

Result<std::string> Build(const Content& content, const std::string& what) {
  std::map<std::string, Entries> by_operation;
  for (const Entry& e : content.entries) by_operation[e.operation].push_back(&e);
  Builder builder{.what = what};
  for (const auto& [operation, entries] : by_operation) builder.AddTree(entries);
  if (!builder.problem.ok()) return std::move(builder.problem);
  std::string bytes = builder.Bytes(content);
  if (builder.edges.size() > kMostEdges || bytes.size() > kMostBytes) {
    return Status(StatusCode::kConfig, {.field = what,
                                        .wanted = "at most " + std::to_string(kMostEdges) + " branches",
                                        .got = "more",
                                        .fix = "use fewer buckets, or a table for each model"});
  }
  return bytes;
}

}  // namespace lz::table
