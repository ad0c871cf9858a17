// The binary form of dispatch tables: what is looked up, and that no damaged byte is read.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "table/build.h"
#include "table/view.h"

namespace lz::table {
namespace {

// Views need bytes at addresses that are multiples of 8, as maps are.
struct Bytes {
  explicit Bytes(const std::string& text) : words((text.size() + 7) / 8), size(text.size()) {
    std::memcpy(words.data(), text.data(), size);
  }
  std::string_view view() const { return {reinterpret_cast<const char*>(words.data()), size}; }
  char* data() { return reinterpret_cast<char*>(words.data()); }
  std::vector<uint64_t> words;
  size_t size;
};

Entry Of(std::string operation, std::string kernel, std::map<std::string, Interval> when, uint32_t plan = 0) {
  return {std::move(operation), std::move(kernel), std::move(when), plan, 1.5f};
}

Content Small() {
  return {
      R"({"schema_version": "1.0"})",
      {Of("a", "one", {{"s", {1, 128}}, {"dtype", {3, 3}}}), Of("a", "two", {{"s", {129, 512}}, {"dtype", {3, 3}}}, 1),
       Of("a", "two", {{"s", {1, 512}}, {"dtype", {4, 4}}}), Of("b", "three", {{"s % 16 == 0", {1, 1}}}),
       Of("b", "four", {{"s % 16 == 0", {0, 0}}, {"s", {5, Interval().hi}}})}};
}

std::string KernelAt(const View& view, std::string_view operation, const std::map<std::string, int64_t>& values) {
  const Tree* const tree = view.FindTree(operation);
  if (!tree) return "no tree";
  const Leaf* const leaf =
      view.Find(*tree, [&](uint32_t v) { return values.at(std::string(view.VariableName(*tree, v))); });
  return leaf ? std::string(view.Name(leaf->kernel)) : "none";
}

void Seal(Bytes* bytes) {
  const size_t covered = bytes->size - sizeof(Checksum);
  const Checksum sum = ChecksumOf(bytes->view().substr(0, covered));
  std::memcpy(bytes->data() + covered, sum.data(), sum.size());
}

TEST(Table, FindsTheEntryOfACall) {
  const Bytes bytes(*Build(Small(), "small"));
  const auto view = View::Open(bytes.view(), "small");
  ASSERT_TRUE(view.ok()) << view.status().Text();
  EXPECT_EQ(KernelAt(*view, "a", {{"s", 1}, {"dtype", 3}}), "one");
  EXPECT_EQ(KernelAt(*view, "a", {{"s", 128}, {"dtype", 3}}), "one");
  EXPECT_EQ(KernelAt(*view, "a", {{"s", 129}, {"dtype", 3}}), "two");
  EXPECT_EQ(KernelAt(*view, "a", {{"s", 513}, {"dtype", 3}}), "none");
  EXPECT_EQ(KernelAt(*view, "a", {{"s", 0}, {"dtype", 3}}), "none");
  EXPECT_EQ(KernelAt(*view, "a", {{"s", 1}, {"dtype", 5}}), "none");
  EXPECT_EQ(KernelAt(*view, "a", {{"s", 300}, {"dtype", 4}}), "two");
  EXPECT_EQ(KernelAt(*view, "b", {{"s % 16 == 0", 1}, {"s", -7}}), "three");
  EXPECT_EQ(KernelAt(*view, "b", {{"s % 16 == 0", 0}, {"s", 1 << 30}}), "four");
  EXPECT_EQ(KernelAt(*view, "b", {{"s % 16 == 0", 0}, {"s", 4}}), "none");
  EXPECT_EQ(KernelAt(*view, "c", {}), "no tree");
}

TEST(Table, AgreesWithItsEntriesForRandomOnes) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    Content content{"{}", {}};
    for (int lo = 0; lo < 40; lo += 4) {  // a grid, so that no two entries disagree
      for (int at = 0; at < 3; ++at) {
        if (random() % 4 == 0) continue;
        content.entries.push_back(Of("a", "k" + std::to_string(random() % 3), {{"x", {lo, lo + 3}}, {"y", {at, at}}}));
      }
    }
    const Bytes bytes(*Build(content, "random"));
    const auto view = View::Open(bytes.view(), "random");
    ASSERT_TRUE(view.ok());
    for (int x = -1; x < 42; ++x) {
      for (int y = -1; y < 4; ++y) {
        std::string wanted = content.entries.empty() ? "no tree" : "none";
        for (const Entry& e : content.entries) {
          if (e.when.at("x").Has(x) && e.when.at("y").Has(y)) wanted = e.kernel;
        }
        ASSERT_EQ(KernelAt(*view, "a", {{"x", x}, {"y", y}}), wanted) << x << " " << y;
      }
    }
  }
}

TEST(Table, ReadsBackWhatItIsBuiltOf) {
  const Bytes bytes(*Build(Small(), "small"));
  const Content read = View::Open(bytes.view(), "small")->Read();
  EXPECT_EQ(read.about, Small().about);
  // What was read is cut at the tree's thresholds, so its own table may have further cuts; then nothing changes any
  // more.
  const Bytes again(*Build(read, "again"));
  const Bytes third(*Build(View::Open(again.view(), "again")->Read(), "third"));
  EXPECT_EQ(third.view(), again.view());
}

TEST(Table, OverlappingEntriesMustAgree) {
  Content content{"{}", {Of("a", "one", {{"s", {1, 10}}}), Of("a", "one", {{"s", {5, 20}}})}};
  const Bytes bytes(*Build(content, "same"));
  EXPECT_EQ(KernelAt(*View::Open(bytes.view(), "same"), "a", {{"s", 20}}), "one");
  content.entries[1].kernel = "two";
  const auto refused = Build(content, "file.json");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().parts().field, "file.json");
}

TEST(Table, EveryFlippedBitIsSeen) {
  const std::string text = *Build(Small(), "small");
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = char(damaged[bit / 8] ^ (1 << bit % 8));
    const Bytes bytes(damaged);
    ASSERT_FALSE(View::Open(bytes.view(), "damaged").ok()) << "bit " << bit;
  }
}

TEST(Table, EveryTruncationIsSeen) {
  const std::string text = *Build(Small(), "small");
  for (size_t size = 0; size < text.size(); ++size) {
    const Bytes bytes(text.substr(0, size));
    ASSERT_FALSE(View::Open(bytes.view(), "short").ok()) << size;
  }
}

// With a checksum that is right for the changed bytes: a file of another program.
TEST(Table, EveryHeaderFieldIsChecked) {
  const std::string text = *Build(Small(), "small");
  for (size_t word = 0; word < sizeof(Header) / 4; ++word) {
    if (word == 3) continue;  // the number of entries is for people
    for (const uint32_t value : {0xffffffffu, 0x7fffffffu, 0x10000001u}) {
      Bytes bytes(text);
      std::memcpy(bytes.data() + 4 * word, &value, sizeof(value));
      Seal(&bytes);
      EXPECT_FALSE(View::Open(bytes.view(), "mutated").ok()) << "word " << word << " = " << value;
    }
  }
}

// Whatever a well-sealed file says, a look-up stays inside it and ends.
TEST(Table, MutatedIndicesLeadNowhereElse) {
  const std::string text = *Build(Small(), "small");
  std::mt19937 random(11);
  int opened = 0;
  for (int round = 0; round < 3000; ++round) {
    Bytes bytes(text);
    const size_t at = sizeof(Header) + random() % (text.size() - sizeof(Header) - sizeof(Checksum));
    bytes.data()[at] = char(random());
    Seal(&bytes);
    const auto view = View::Open(bytes.view(), "mutated");
    if (!view.ok()) continue;
    ++opened;
    for (const Tree& tree : view->trees()) {
      for (int v = -2; v < 600; v += 7) (void)view->Find(tree, [&](uint32_t) { return v; });
    }
    (void)view->Read();
  }
  EXPECT_GT(opened, 0);
}

}  // namespace
}  // namespace lz::table
