// Rows as one axis of packed sequences, and operations that write what a run gives: keys and values over pages.
#include <gmock/gmock.h>

#include <algorithm>

#include "program_fixture.h"

namespace lz {
namespace {

using testing::HasSubstr;
using Kind = ProgramValue::Kind;

constexpr int64_t kHeads = 4, kHeadsKV = 2, kDim = 16, kWidth = (kHeads + 2 * kHeadsKV) * kDim;
constexpr int64_t kBatch = 2, kLength = 5, kBlocks = 8, kBlockSize = 4;

Operand Packed(Operand rows) {
  rows.packed = true;
  return rows;
}

class PackedRows : public ProgramFixture {
 protected:
  // Queries, keys and values lie side by side in the rows; of these, columns of one.
  Operand Query() const { return Part(qkv, 0, {kHeads, kDim}); }
  Operand Key() const { return Part(qkv, kHeads * kDim, {kHeadsKV, kDim}); }
  Operand Value() const { return Part(qkv, (kHeads + kHeadsKV) * kDim, {kHeadsKV, kDim}); }

  void Begin() {
    values.clear(), steps.clear();
    const Operand x = Input();
    qkv = Rows(kWidth);
    Step("cast", {x}, {qkv}, {{"dtype", 0}});
  }
  void BuildDense() {
    Begin();
    const Operand keys = Cache({kHeadsKV, kDim}), seen = Cache({kHeadsKV, kDim}), y = Output(kHeads * kDim);
    Step("cast", {Key()}, {keys}, {{"dtype", 0}});
    Step("cast", {Value()}, {seen}, {{"dtype", 0}});
    Step("attention", {Query(), Past(keys), Past(seen)}, {Part(y, 0, {kHeads, kDim})}, {{"causal", 1}});
  }
  void BuildPaged() {
    Begin();
    const Operand keys = Input(), seen = Input(), slots = Input(), rows = Input(), offsets = Input(), pages = Input(),
                  last = Input(), y = Output(kHeads * kDim);
    Step("kv_append_paged", {keys, seen, Packed(Key()), Packed(Value()), slots}, {});
    Step("paged_prefill_attention", {Packed(Query()), keys, seen, rows, offsets, pages, last},
         {Packed(Part(y, 0, {kHeads, kDim}))}, {{"causal", 1}, {"window_left", -1}});
  }
  OwnedTensor& Integers(const std::vector<int64_t>& numbers, DType dtype = DType::kI32) {
    OwnedTensor& tensor = Tensor({int64_t(numbers.size())}, 0, dtype);
    const lz_tensor t = tensor.tensor();
    const View view(t);
    tensor.ForEach([&](int64_t flat, int64_t at) { view.Store(at, double(numbers[size_t(flat)])); });
    return tensor;
  }

  Operand qkv;
};

TEST_F(PackedRows, AttentionOverPagesIsThatOverRows) {
  BuildDense();
  const auto dense = Make();
  BuildPaged();
  const auto paged = Make();
  ASSERT_TRUE(dense && paged);
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(paged->WritesInput(i), i == 1 || i == 2) << i;

  OwnedTensor &x = Tensor({kBatch, kLength, kWidth}, 3), &expected = Tensor({kBatch, kLength, kHeads * kDim}),
              &actual = Tensor({kBatch, kLength, kHeads * kDim}),
              &dense_keys = Tensor({kBatch, kLength, kHeadsKV, kDim}),
              &dense_values = Tensor({kBatch, kLength, kHeadsKV, kDim}),
              &keys = Tensor({kBlocks, kBlockSize, kHeadsKV, kDim}, 5),
              &seen = Tensor({kBlocks, kBlockSize, kHeadsKV, kDim}, 6);
  ASSERT_TRUE(Run(*dense, {&x}, {&expected}, {&dense_keys, &dense_values}).ok());
  // Pages 5 and 2 are the first sequence's, 7 and 0 the second's.
  OwnedTensor& slots = Integers({20, 21, 22, 23, 8, 28, 29, 30, 31, 0}, DType::kI64);
  const auto before = Values(keys);
  const Status status = Run(*paged,
                            {&x, &keys, &seen, &slots, &Integers({0, 5, 10}), &Integers({0, 2, 4}),
                             &Integers({5, 2, 7, 0}), &Integers({1, 1})},
                            {&actual});
  ASSERT_TRUE(status.ok()) << status.Text();
  const auto wanted = Values(expected), got = Values(actual), after = Values(keys), written = Values(dense_keys);
  for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 1e-5) << i;
  constexpr size_t kRow = kHeadsKV * kDim;
  const auto at = Values(slots);
  for (size_t slot = 0; slot < size_t(kBlocks * kBlockSize); ++slot) {
    const auto row = std::find(at.begin(), at.end(), double(slot));
    for (size_t i = 0; i < kRow; ++i) {
      const double kept = row == at.end() ? before[slot * kRow + i] : written[size_t(row - at.begin()) * kRow + i];
      ASSERT_EQ(after[slot * kRow + i], kept) << "slot " << slot;
    }
  }
  EXPECT_TRUE(keys.GuardsIntact() && seen.GuardsIntact() && actual.GuardsIntact());
}

TEST_F(PackedRows, OnlyWhatARunGivesIsWritten) {
  OwnedTensor& memory = Tensor({kBlocks, kBlockSize, kHeadsKV, kDim}, 5);
  Begin();
  const Operand weight = Weight(memory), own = Rows(kHeadsKV * kDim), slots = Input(), keys = Input();
  Step("cast", {Part(qkv, 0, {kHeadsKV * kDim})}, {own}, {{"dtype", 0}});
  for (const Operand& wrong : {weight, Part(own, 0, {kHeadsKV, kDim}), Packed(Part(own, 0, {kHeadsKV, kDim}))}) {
    Step("kv_append_paged", {keys, wrong, Packed(Key()), Packed(Value()), slots}, {});
    EXPECT_THAT(WhyNot(), HasSubstr("value_cache: wanted a tensor of the run, which the step writes"));
    steps.pop_back();
  }
}

TEST_F(PackedRows, NothingButRowsIsPacked) {
  OwnedTensor& tensor = Tensor({16}, 1);
  const Operand x = Input(), y = Output(16), weight = Weight(tensor), cache = Cache({16});
  for (const Operand& wrong : {Packed(x), Packed(weight)}) {
    steps.clear();
    Step("elementwise", {x, wrong}, {y});
    EXPECT_THAT(WhyNot(), HasSubstr("a weight or an input as it is"));
  }
  steps.clear();
  Step("elementwise", {x, x}, {Packed(cache)});
  EXPECT_THAT(WhyNot(), HasSubstr("step 0 (elementwise): output: wanted"));
}

}  // namespace
}  // namespace lz
