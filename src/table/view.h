// The binary form of a dispatch table: read in place, so that loading is a map and a check.
//
//   Header | about | strings | trees | variables | nodes | edges | leaves | checksum
//
// All numbers are little-endian and aligned. A tree is a node for each variable that still distinguishes entries; its
// edges are disjoint ranges of values in ascending order, and lead to nodes that come later, or to leaves. The checksum
// (BLAKE2b, 256 bits) is of all bytes before it.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"
#include "table/table.h"

namespace lz::table {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::string_view kMagic{"LZTABLE\0", 8};
inline constexpr uint32_t kFormat = 1;
inline constexpr size_t kMostBytes = size_t{256} << 20;
inline constexpr uint32_t kLeafBit = 1u << 31;

struct Section {
  uint32_t offset, count;  // bytes from the beginning; number of members (bytes of `about`)
};
struct Text {
  uint32_t offset, size;  // bytes from the beginning
};
struct Tree {
  uint32_t operation, root, first_variable, num_variables;  // a string; a child; members of their sections
};
struct Node {
  uint32_t variable, first_edge, num_edges;  // of the tree's variables
};
struct Edge {
  int32_t lo, hi;
  uint32_t child;  // a node, or with kLeafBit a leaf
};
struct Leaf {
  uint32_t kernel, plan;  // a string; index of a plan
  float us;
};
struct Header {
  char magic[8];
  uint32_t format, num_entries;
  uint64_t bytes;  // of the whole file
  Section about, strings, trees, variables, nodes, edges, leaves;
};
using Checksum = std::array<uint8_t, 32>;
Checksum ChecksumOf(std::string_view bytes);

class View {
 public:
  // kConfig, with `what` as the field: not a table, of another format, damaged, or with an index that leads nowhere.
  // The view refers to `bytes`.
  static Result<View> Open(std::string_view bytes, const std::string& what);

  std::string_view about() const { return bytes_.substr(header().about.offset, header().about.count); }
  uint32_t num_entries() const { return header().num_entries; }
  std::span<const Tree> trees() const { return Members<Tree>(header().trees); }
  const Tree* FindTree(std::string_view operation) const;
  std::string_view Name(uint32_t string) const;  // empty: no such string
  std::string_view VariableName(const Tree& tree, uint32_t variable) const;
  std::span<const Edge> EdgesOf(const Node& node) const;
  const Node* node(uint32_t index) const;
  const Leaf* leaf(uint32_t index) const;
  std::span<const Node> nodes() const { return Members<Node>(header().nodes); }

  // The leaf for the values that `value_of(variable of the tree)` returns; nullptr: the tree has none.
  template <class ValueOf>
  const Leaf* Find(const Tree& tree, ValueOf&& value_of) const {
    uint32_t child = tree.root;
    while (!(child & kLeafBit)) {
      const Node* const at = node(child);
      if (!at) return nullptr;
      const Edge* const edge = Covering(EdgesOf(*at), value_of(at->variable));
      // Children come later, so that the way ends even if the file is changed while it is mapped.
      if (!edge || (!(edge->child & kLeafBit) && edge->child <= child)) return nullptr;
      child = edge->child;
    }
    return leaf(child & ~kLeafBit);
  }

  // Every entry again; a leaf that several ways lead to is several.
  Content Read() const;

 private:
  explicit View(std::string_view bytes) : bytes_(bytes) {}
  const Header& header() const { return *reinterpret_cast<const Header*>(bytes_.data()); }
  template <class T>
  std::span<const T> Members(Section s) const {
    return {reinterpret_cast<const T*>(bytes_.data() + s.offset), s.count};
  }
  static const Edge* Covering(std::span<const Edge> edges, int64_t value);
  Status Check(const std::string& what) const;
  bool IsChild(uint32_t child, uint32_t after) const;

  std::string_view bytes_;
};

}  // namespace lz::table
