// liblayerzero_cuda.so is optional, and what is no such library of this build is refused.
#include "engine/cuda_library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "test_paths.h"

namespace lz {
namespace {

TEST(CudaLibrary, AbsentIsNoError) {
  auto loaded = LoadCudaLibrary(Engine::Get().selector().registry(), "/nonexistent/liblayerzero_cuda.so");
  ASSERT_TRUE(loaded.ok());
  EXPECT_FALSE(*loaded);
  EXPECT_TRUE(CudaLibraryPath().ends_with("/liblayerzero_cuda.so"));
}

TEST(CudaLibrary, AnotherLibraryIsRefused) {
  auto loaded = LoadCudaLibrary(Engine::Get().selector().registry(), LZ_BINARY_DIR "/plugins/libplugin_good.so");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::kVersionMismatch);
  EXPECT_EQ(loaded.status().parts().wanted, "the symbol lz_cuda_build_id");
}

TEST(CudaLibrary, OfAnotherBuildIsRefusedUncalled) {
  const std::string path = LZ_BINARY_DIR "/plugins/libcuda_of_another_build.so";
  auto loaded = LoadCudaLibrary(Engine::Get().selector().registry(), path);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::kVersionMismatch);
  EXPECT_EQ(loaded.status().parts().got, "0.0.0+another");
}

// Every field set to a value that is not its default.
TEST(CudaLibrary, RowsArriveAsTheyWereSent) {
  static constexpr int64_t kSet[] = {3, 5};
  static constexpr Constraint kConstraints[] = {
      {"device.sm", Rel::kInSet, 0, kSet, ReasonCode::kDeviceCapabilityUnsupported},
      {"head_dim", Rel::kLe, 256},
  };
  static constexpr Preference kPreferences[] = {{.when = {&kConstraints[1], 1}, .priority = 3},
                                                {.when = kConstraints, .priority = 4}};
  static constexpr std::string_view kAccepts[] = {"weight", "scale"};
  const KernelSpec sent = {
      .id = "a.b",
      .operation = "norm.rms",
      .source = "c",
      .version = 7,
      .platform = Platform::kCuda,
      .dtypes = 5,
      .constraints = kConstraints,
      .accepts = kAccepts,
      .strides = Strides::kAny,
      .priority = 61,
      .preferences = kPreferences,
      .deterministic = true,
      .cuda_graph_safe = true,
      .requires_grad = true,
      .reference = true,
      .numerics = "d",
      .call = CallKind::kHost,
      .launch = [](const lz_kernel_args*) { return int32_t(1); },
      .workspace = [](const lz_kernel_args*) { return uint64_t(2); },
      .open = [](const char*) { return ""; },
  };
  ReceivedKernels received;
  const RowReceiver receiver = received.receiver();
  Send({.id = "first", .operation = "norm.layer"}, receiver);
  Send(sent, receiver);
  const ReceivedKernels moved = std::move(received);
  const std::vector<KernelSpec> specs = moved.Specs();
  ASSERT_EQ(specs.size(), 2u);
  EXPECT_EQ(specs[0].id, "first");
  EXPECT_TRUE(specs[0].constraints.empty() && specs[0].accepts.empty() && specs[0].preferences.empty());
  const KernelSpec& got = specs[1];
  const auto scalars = [](const KernelSpec& s) {
    return std::tuple(s.id, s.operation, s.source, s.version, s.platform, s.dtypes, s.strides, s.priority,
                      s.deterministic, s.cuda_graph_safe, s.requires_grad, s.reference, s.numerics, s.call, s.launch,
                      s.workspace, s.open);
  };
  EXPECT_EQ(scalars(got), scalars(sent));
  EXPECT_TRUE(std::ranges::equal(got.accepts, kAccepts));
  const auto same = [](const Constraint& a, const Constraint& b) {
    return std::tuple(a.field, a.rel, a.operand, a.code) == std::tuple(b.field, b.rel, b.operand, b.code) &&
           std::ranges::equal(a.set, b.set);
  };
  EXPECT_TRUE(std::ranges::equal(got.constraints, kConstraints, same));
  EXPECT_TRUE(std::ranges::equal(got.preferences, kPreferences, [&](const Preference& a, const Preference& b) {
    return a.priority == b.priority && std::ranges::equal(a.when, b.when, same);
  }));
}

}  // namespace
}  // namespace lz
