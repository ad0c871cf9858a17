// The row of cuda.norm.rms, read without a driver; its results are compared on a device by tests/gpu/test_rms_norm.py.
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "engine/cuda_library.h"
#include "engine/engine.h"
#include "test_paths.h"

namespace lz {
namespace {

const std::string kPath = LZ_BINARY_DIR "/lib/liblayerzero_cuda.so";

TEST(CudaRmsNorm, IsAdmissibleOnASimulatedDevice) {
  if (access(kPath.c_str(), F_OK) != 0) GTEST_SKIP() << kPath << " is not built (LZ_BUILD_CUDA)";
  Engine& engine = Engine::Get();
  auto loaded = LoadCudaLibrary(engine.selector().registry(), kPath);
  ASSERT_TRUE(loaded.ok()) << loaded.status().Text();
  ASSERT_TRUE(*loaded);

  std::vector<float> data(2 * 64);
  int64_t shape[] = {2, 64}, strides[] = {64, 1};
  const lz_tensor input = {data.data(), {1, 0}, 2, {2, 32, 1}, shape, strides, 0};
  const auto candidate = [&](const char* device) {
    Request request(*engine.Find("rms_norm"));
    request.tensors[0] = input;
    auto text = engine.Explain(request, device);
    EXPECT_TRUE(text.ok()) << text.status().Text();
    const auto report = nlohmann::json::parse(*text);
    for (const auto& c : report["candidates"]) {
      if (c["kernel_id"] == "cuda.norm.rms") return c;
    }
    return nlohmann::json();
  };
  const auto h100 = candidate("h100");
  ASSERT_FALSE(h100.is_null());
  EXPECT_EQ(h100["admissible"], true) << h100.dump();
  EXPECT_EQ(h100["runnable"], false);
  EXPECT_EQ(candidate("t4")["admissible"], false);
  EXPECT_EQ(candidate("cpu")["admissible"], false);
}

}  // namespace
}  // namespace lz
