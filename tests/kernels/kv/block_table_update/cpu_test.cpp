// cpu.kv.block_table_update: entries are written in order, or none of them.
#include <gtest/gtest.h>

#include <vector>

#include "core/dtype.h"
#include "core/kernel.h"

namespace lz::kernels {
extern const KernelFamily kernels_kv_block_table_update_cpu;
}  // namespace lz::kernels

namespace lz {
namespace {

using Table = std::vector<int32_t>;

// A table of 2 rows and 3 columns whose rows are 4 numbers apart.
int32_t Update(Table& table, std::vector<int64_t> triples) {
  int64_t table_shape[] = {2, 3}, table_strides[] = {4, 1};
  int64_t shape[] = {int64_t(triples.size()) / 3, 3}, strides[] = {3, 1};
  const lz_tensor tensors[] = {{table.data(), {1, 0}, 2, {0, 32, 1}, table_shape, table_strides, 0},
                               {triples.data(), {1, 0}, 2, {0, 64, 1}, shape, strides, 0}};
  lz_kernel_args args{};
  args.size = sizeof(args);
  args.tensors = tensors;
  return kernels::kernels_kv_block_table_update_cpu[0].launch(&args);
}

TEST(CpuKvBlockTableUpdate, WritesInOrder) {
  Table table(8, 5);
  EXPECT_EQ(Update(table, {0, 2, 7, 1, 0, -1, 0, 2, 9}), LZ_LAUNCH_DONE);
  EXPECT_EQ(table, (Table{5, 5, 9, 5, -1, 5, 5, 5}));
}

TEST(CpuKvBlockTableUpdate, WritesNothingIfOneTripleIsOutside) {
  for (const std::vector<int64_t>& bad :
       {std::vector<int64_t>{2, 0, 1}, {-1, 0, 1}, {0, 3, 1}, {0, -1, 1}, {0, 0, int64_t{1} << 31}}) {
    Table table(8, 5);
    std::vector<int64_t> triples{0, 0, 1};
    triples.insert(triples.end(), bad.begin(), bad.end());
    EXPECT_EQ(Update(table, triples), LZ_LAUNCH_INVALID_INDEX);
    EXPECT_EQ(table, Table(8, 5));
  }
}

}  // namespace
}  // namespace lz
