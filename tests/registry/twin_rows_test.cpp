// One function has one row in an operation: what it computes is said by constraints, which calls it should get by
// preferences. Two rows would be two ids for one kernel, whose measured times do not count for each other.
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>

#include "engine/cuda_library.h"
#include "registry/registry.h"
#include "test_paths.h"

namespace lz {
namespace {

using Function = std::pair<std::string, lz_launch_fn>;

std::map<Function, std::set<std::string>> RowsOfFunctions(const Registry& registry) {
  std::map<Function, std::set<std::string>> found;
  for (const KernelEntry* k : registry.Kernels(nullptr)) {
    if (k->spec.launch) found[{k->operation, k->spec.launch}].insert(k->id);
  }
  return found;
}

// Rows that are right under different conditions for different dtypes or formats: a constraint has no "or".
const std::set<std::set<std::string>> kConditions = {
    {"onednn.mlp.linear", "onednn.mlp.linear_bf16"},
    {"onednn.mlp.linear.panels", "onednn.mlp.linear.panels_bf16"},
    {"hwy.kv.rope_append_paged", "hwy.kv.rope_append_paged.coded"},  // scales for caches of 8-bit codes alone
    {"cuda.quantize.groups", "cuda.quantize.groups.int4", "cuda.quantize.powers"},
    {"cuda.quantize.asymmetric.groups", "cuda.quantize.asymmetric.groups.paired"},
    {"cuda.mlp.linear.quantized", "cuda.mlp.linear.quantized.nvfp4"},
    {"cuda.attention.cross.prefill", "cuda.attention.cross.prefill.mask"},  // with a mask not in strict mode
};

TEST(TwinRows, AFunctionHasOneRowInAnOperation) {
  Registry registry;
  const std::string cuda = LZ_BINARY_DIR "/lib/liblayerzero_cuda.so";
  if (access(cuda.c_str(), F_OK) == 0) {
    ASSERT_TRUE(LoadCudaLibrary(registry, cuda).ok());
  }
  std::set<std::set<std::string>> twins;
  for (const auto& [function, ids] : RowsOfFunctions(registry)) {
    if (ids.size() > 1 && !kConditions.contains(ids)) twins.insert(ids);
  }
  for (const auto& ids : twins) {
    std::string text;
    for (const std::string& id : ids) text += " " + id;
    ADD_FAILURE() << "one function:" << text;
  }
}

TEST(TwinRows, APlantedTwinIsFound) {
  Registry registry;
  const auto launch = [](const lz_kernel_args*) { return int32_t(0); };
  for (const char* id : {"a.k", "a.k.long"}) {
    const KernelSpec spec = {.id = id, .operation = "norm.rms", .dtypes = kFloats, .launch = launch};
    const Registry::Registration one{&spec, {}, {}};
    ASSERT_TRUE(registry.Register({&one, 1}).ok());
  }
  const auto rows = RowsOfFunctions(registry);
  const auto at = rows.find({"norm.rms", launch});
  ASSERT_NE(at, rows.end());
  EXPECT_EQ(at->second.size(), 2u);
}

}  // namespace
}  // namespace lz
