// cpu.embedding.lookup: copies rows bit for bit, refuses ids outside the table, whatever the partition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/dtype.h"
#include "core/kernel.h"
#include "ops/embedding/lookup.h"

namespace lz::kernels {
extern const KernelFamily kernels_embedding_lookup_cpu;
extern const KernelFamily ops_embedding_lookup_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::ops::embedding_lookup;

constexpr int64_t kVocab = 9;

void RunParts(void*, int64_t begin, int64_t end, int64_t, lz_parallel_body body, void* context) {
  for (int64_t i = begin; i < end; i += 2) body(i, std::min(i + 2, end), context);
}
const lz_parallel kParallel = {&RunParts, nullptr, 2};

lz_dtype Code(DType type) { return {Info(type).dlpack_code, Info(type).bits, Info(type).lanes}; }

// A call with ids [2, count / 2] whose last axis is dense and a table whose rows are `pad` elements apart.
template <class Id>
struct Lookup {
  Lookup(std::vector<Id> the_ids, DType type, int64_t hidden, int64_t pad = 0)
      : ids(std::move(the_ids)), half(int64_t(ids.size()) / 2), size(ByteSize(type)) {
    table.resize(size_t(kVocab * (hidden + pad) * size));
    for (size_t i = 0; i < table.size(); ++i) table[i] = char(i * 37 + i / 256);
    out.assign(size_t(2 * half * hidden * size), '?');
    ids_shape = {2, half}, ids_strides = {half, 1};
    table_shape = {kVocab, hidden}, table_strides = {hidden + pad, 1};
    out_shape = {2, half, hidden}, out_strides = {half * hidden, hidden, 1};
    const lz_dtype id_type = Code(sizeof(Id) == 4 ? DType::kI32 : DType::kI64);
    tensors = {{ids.data(), {1, 0}, 2, id_type, ids_shape.data(), ids_strides.data(), 0},
               {table.data(), {1, 0}, 2, Code(type), table_shape.data(), table_strides.data(), 0},
               {out.data(), {1, 0}, 3, Code(type), out_shape.data(), out_strides.data(), 0}};
  }
  int32_t Run(const KernelSpec& kernel) {
    const lz_kernel_args args = {.size = sizeof(lz_kernel_args), .tensors = tensors.data(), .parallel = &kParallel};
    return kernel.launch(&args);
  }

  std::vector<Id> ids;
  int64_t half, size;
  std::vector<char> table, out;
  std::vector<int64_t> ids_shape, ids_strides, table_shape, table_strides, out_shape, out_strides;
  std::vector<lz_tensor> tensors;
};

const KernelSpec& Kernel() { return kernels::kernels_embedding_lookup_cpu[0]; }
const KernelSpec& Reference() { return kernels::ops_embedding_lookup_ref[0]; }

template <class Id>
void ExpectRows(DType type, int64_t hidden, int64_t pad) {
  SCOPED_TRACE(std::string(Info(type).name) + " hidden " + std::to_string(hidden));
  for (const KernelSpec* kernel : {&Kernel(), &Reference()}) {
    Lookup<Id> call({0, 8, 3, 3, 1, 7}, type, hidden, pad);
    ASSERT_EQ(call.Run(*kernel), 0);
    const size_t row = size_t(hidden * call.size), stride = size_t((hidden + pad) * call.size);
    for (size_t i = 0; i < call.ids.size(); ++i) {
      EXPECT_EQ(std::memcmp(call.out.data() + i * row, call.table.data() + size_t(call.ids[i]) * stride, row), 0) << i;
    }
  }
}

TEST(CpuEmbedding, CopiesRowsOfEveryDType) {
  for (size_t type = 1; type < size_t(DType::kCount); ++type) {
    ExpectRows<int64_t>(DType(type), 33, 0);
    ExpectRows<int32_t>(DType(type), 1, 3);
  }
  ExpectRows<int64_t>(DType::kF32, 32768, 0);  // a row is more than a grain: one id for each part
}

TEST(CpuEmbedding, RefusesIdsOutsideTheTable) {
  for (const KernelSpec* kernel : {&Kernel(), &Reference()}) {
    for (int64_t hidden : {4, 32768}) {
      for (int64_t id : {int64_t{-1}, kVocab, int64_t{1} << 40, INT64_MIN, INT64_MAX}) {
        Lookup<int64_t> call({0, 1, id, 2}, DType::kF32, hidden);
        EXPECT_EQ(call.Run(*kernel), kIdOutOfRange) << id;
      }
    }
    Lookup<int32_t> call({0, INT32_MIN}, DType::kBF16, 4);
    EXPECT_EQ(call.Run(*kernel), kIdOutOfRange);
  }
}

TEST(CpuEmbedding, TakesNoIdsAndNoColumns) {
  for (const KernelSpec* kernel : {&Kernel(), &Reference()}) {
    Lookup<int64_t> none({}, DType::kF32, 4), narrow({0, 8}, DType::kF32, 0);
    EXPECT_EQ(none.Run(*kernel), 0);
    EXPECT_EQ(narrow.Run(*kernel), 0);
  }
}

}  // namespace
}  // namespace lz
