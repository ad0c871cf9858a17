// libxsmm.mlp.linear: equals the reference at every remainder and with every stride, in parts and on many threads.
#include "tests/kernels/mlp/linear/library_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_libxsmm;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class Libxsmm : public LibraryTest {
 protected:
  Libxsmm() : LibraryTest({.kernel = kernels::kernels_mlp_linear_libxsmm[0], .column_major = true}) {}
};

TEST_F(Libxsmm, EqualsTheReference) { ExpectLikeTheReference(); }
TEST_F(Libxsmm, EqualsTheReferenceOverSeveralBlocks) {
  for (int64_t rows : {63, 64, 65, 130})
    for (int64_t k : {255, 256, 257, 600}) Expect({.rows = rows, .n = 70, .k = k, .bias = k % 2 == 0});
}
TEST_F(Libxsmm, TakesPaddedMatrices) {
  for (int64_t rows : {1, 2, 67})
    for (int64_t n : {1, 5, 64, 100}) Expect({.rows = rows, .n = n, .k = 13, .bias = true, .pad = 5});
}
TEST_F(Libxsmm, EqualsTheReferenceInParts) { ExpectLikeTheReferenceInParts(); }
TEST_F(Libxsmm, EqualsTheReferenceOnManyThreads) { ExpectLikeTheReferenceOnManyThreads(); }

// Strides that make no matrix: one column of weights for all of k; rows that overlap; rows with two distances.
TEST_F(Libxsmm, TakesStridesThatMakeNoMatrix) {
  const LinearCall call = {.rows = 6, .n = 70, .k = 9, .column_major = true};
  const auto expect = [&](LinearData& data, const lz_tensor& input, const lz_tensor& weight) {
    ASSERT_EQ(data.Run(kernel(), call, data.output, input, weight), 0);
    ASSERT_EQ(data.Run(kernels::ops_mlp_linear_ref[0], call, data.wanted, input, weight), 0);
    EXPECT_LE(RowMaxError(data.output.view(), data.wanted.view()), 1e-5);
  };
  LinearData data(call);
  const lz_tensor input = data.input.tensor(), weight = data.weight.tensor();
  for (int64_t apart : {0, 1, 8}) {
    int64_t in_strides[] = {apart, 1}, weight_strides[] = {1, apart};
    lz_tensor overlapping = input, same = weight;
    overlapping.strides = in_strides;
    same.strides = weight_strides;
    expect(data, overlapping, same);
  }
  LinearData more({.rows = 20, .n = 70, .k = 9, .column_major = true});
  int64_t shape[] = {2, 3, 9}, strides[] = {90, 9, 1};
  lz_tensor groups = more.input.tensor();
  groups.ndim = 3;
  groups.shape = shape;
  groups.strides = strides;
  expect(data, groups, weight);
}

}  // namespace
}  // namespace lz::testing
