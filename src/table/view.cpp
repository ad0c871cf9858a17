#include "table/view.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>

namespace lz::table {
namespace {

Status Bad(const std::string& what, std::string wanted, std::string got) {
  return Status(StatusCode::kConfig, {.field = what,
                                      .wanted = std::move(wanted),
                                      .got = std::move(got),
                                      .fix = "make it again with `layerzero solve`"});
}

template <class T>
bool Fits(Section s, size_t size) {
  const uint64_t end = uint64_t{s.offset} + uint64_t{s.count} * sizeof(T);
  return s.offset >= sizeof(Header) && end <= size && s.offset % alignof(T) == 0;
}

}  // namespace

Checksum ChecksumOf(std::string_view bytes) {
  static const int ready = sodium_init();  // chooses the fastest code for this CPU
  (void)ready;
  Checksum sum;
  crypto_generichash(sum.data(), sum.size(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                     nullptr, 0);
  return sum;
}

Result<View> View::Open(std::string_view bytes, const std::string& what) {
  constexpr size_t kLeast = sizeof(Header) + sizeof(Checksum);
  if (bytes.size() < kLeast || bytes.size() > kMostBytes || !bytes.starts_with(kMagic)) {
    return Bad(what, "a dispatch table in binary form", std::to_string(bytes.size()) + " bytes of something else");
  }
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(Header) != 0) {
    return Bad(what, "bytes at an address that is a multiple of 8", "another address");
  }
  const View view(bytes);
  const Header& h = view.header();
  if (h.format != kFormat) return Bad(what, "format " + std::to_string(kFormat), std::to_string(h.format));
  if (h.bytes != bytes.size()) {
    return Bad(what, std::to_string(h.bytes) + " bytes", std::to_string(bytes.size()));
  }
  const std::string_view covered = bytes.substr(0, bytes.size() - sizeof(Checksum));
  const Checksum sum = ChecksumOf(covered);
  if (std::memcmp(sum.data(), bytes.data() + covered.size(), sum.size()) != 0) {
    return Bad(what, "the checksum of its bytes", "another one: the file is damaged");
  }
  LZ_RETURN_IF_ERROR(view.Check(what));
  return view;
}

bool View::IsChild(uint32_t child, uint32_t after) const {
  const Header& h = header();
  return child & kLeafBit ? (child & ~kLeafBit) < h.leaves.count : child > after && child < h.nodes.count;
}

// A file with a right checksum may still come from another program.
Status View::Check(const std::string& what) const {
  const Header& h = header();
  const size_t size = bytes_.size() - sizeof(Checksum);
  const auto bad = [&](const char* part) { return Bad(what, "indices that lead somewhere", std::string(part)); };
  const bool fit = Fits<char>(h.about, size) && Fits<Text>(h.strings, size) && Fits<Tree>(h.trees, size) &&
                   Fits<uint32_t>(h.variables, size) && Fits<Node>(h.nodes, size) && Fits<Edge>(h.edges, size) &&
                   Fits<Leaf>(h.leaves, size);
  if (!fit) return bad("a section outside of the file");
  for (const Text& t : Members<Text>(h.strings)) {
    if (uint64_t{t.offset} + t.size > size) return bad("a string outside of the file");
  }
  for (const uint32_t name : Members<uint32_t>(h.variables)) {
    if (name >= h.strings.count) return bad("a variable without a name");
  }
  uint32_t most_variables = 0;
  for (const Tree& t : trees()) {
    if (t.operation >= h.strings.count || uint64_t{t.first_variable} + t.num_variables > h.variables.count) {
      return bad("a tree without an operation or variables");
    }
    if (t.root & kLeafBit ? (t.root & ~kLeafBit) >= h.leaves.count : t.root >= h.nodes.count) return bad("a root");
    most_variables = std::max(most_variables, t.num_variables);
  }
  const std::span<const Edge> edges = Members<Edge>(h.edges);
  for (size_t n = 0; n < h.nodes.count; ++n) {
    const Node& at = nodes()[n];
    if (at.variable >= most_variables || uint64_t{at.first_edge} + at.num_edges > edges.size()) return bad("a node");
    const std::span<const Edge> own = edges.subspan(at.first_edge, at.num_edges);
    for (size_t e = 0; e < own.size(); ++e) {
      const bool ordered = own[e].lo <= own[e].hi && (e == 0 || own[e - 1].hi < own[e].lo);
      if (!ordered || !IsChild(own[e].child, uint32_t(n))) return bad("an edge");
    }
  }
  for (const Leaf& leaf : Members<Leaf>(h.leaves)) {
    if (leaf.kernel >= h.strings.count) return bad("a leaf without a kernel");
  }
  return {};
}

const Tree* View::FindTree(std::string_view operation) const {
  const auto all = trees();
  const auto at = std::ranges::find_if(all, [&](const Tree& t) { return Name(t.operation) == operation; });
  return at == all.end() ? nullptr : &*at;
}

std::string_view View::Name(uint32_t string) const {
  const auto strings = Members<Text>(header().strings);
  if (string >= strings.size()) return {};
  const Text text = strings[string];
  return uint64_t{text.offset} + text.size > bytes_.size() ? std::string_view() : bytes_.substr(text.offset, text.size);
}

std::string_view View::VariableName(const Tree& tree, uint32_t variable) const {
  const auto variables = Members<uint32_t>(header().variables);
  const uint64_t at = uint64_t{tree.first_variable} + variable;
  return variable >= tree.num_variables || at >= variables.size() ? std::string_view() : Name(variables[at]);
}

std::span<const Edge> View::EdgesOf(const Node& node) const {
  const auto edges = Members<Edge>(header().edges);
  const uint32_t first = node.first_edge, count = node.num_edges;
  return uint64_t{first} + count > edges.size() ? std::span<const Edge>() : edges.subspan(first, count);
}

const Node* View::node(uint32_t index) const { return index < nodes().size() ? &nodes()[index] : nullptr; }

const Leaf* View::leaf(uint32_t index) const {
  const auto leaves = Members<Leaf>(header().leaves);
  return index < leaves.size() ? &leaves[index] : nullptr;
}

const Edge* View::Covering(std::span<const Edge> edges, int64_t value) {
  const auto at = std::ranges::partition_point(edges, [&](const Edge& e) { return e.hi < value; });
  return at == edges.end() || at->lo > value ? nullptr : &*at;
}

Content View::Read() const {
  Content content;
  content.about = std::string(about());
  for (const Tree& tree : trees()) {
    Entry entry;
    entry.operation = std::string(Name(tree.operation));
    const auto walk = [&](const auto& self, uint32_t child) -> void {
      if (child & kLeafBit) {
        const Leaf* const l = leaf(child & ~kLeafBit);
        if (!l) return;
        entry.kernel = std::string(Name(l->kernel));
        entry.plan = l->plan;
        entry.us = l->us;
        content.entries.push_back(entry);
        return;
      }
      const Node* const at = node(child);
      if (!at) return;
      const std::string name(VariableName(tree, at->variable));
      for (const Edge& edge : EdgesOf(*at)) {
        entry.when[name] = {edge.lo, edge.hi};
        self(self, edge.child);
      }
      entry.when.erase(name);
    };
    walk(walk, tree.root);
  }
  return content;
}

}  // namespace lz::table
