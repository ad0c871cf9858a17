// Rows of own CUDA kernels, read without a driver and asked on simulated devices. Their results are compared with FP64
// on a device by tests/gpu.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/cuda_library.h"
#include "engine/engine.h"
#include "test_paths.h"

namespace lz {

inline const std::string kCudaLibrary = LZ_BINARY_DIR "/lib/liblayerzero_cuda.so";

// A call whose tensors have shapes but no values that anybody reads.
class CudaRow : public testing::Test {
 protected:
  void SetUp() override {
    if (access(kCudaLibrary.c_str(), F_OK) != 0) GTEST_SKIP() << kCudaLibrary << " is not built (LZ_BUILD_CUDA)";
    static const bool loaded = [] {  // once for the process: a kernel is registered once
      auto found = LoadCudaLibrary(Engine::Get().selector().registry(), kCudaLibrary);
      return found.ok() && *found;
    }();
    ASSERT_TRUE(loaded);
  }

  lz_tensor Tensor(DType type, std::vector<int64_t> shape) {
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    const DTypeInfo& info = Info(type);
    sizes_.push_back(std::move(shape));
    sizes_.push_back(std::move(strides));
    return {reinterpret_cast<void*>(sizes_.size() << 40),  // memory of its own, which nobody reads
            {1, 0},
            int32_t(sizes_.back().size()),
            {info.dlpack_code, info.bits, info.lanes},
            sizes_[sizes_.size() - 2].data(),
            sizes_.back().data(),
            0};
  }

  // A scalar that is given; Left() is one that is not.
  static lz_scalar Int(int64_t value) { return {{.i = value}, 1}; }
  static lz_scalar Float(double value) { return {{.f = value}, 1}; }
  static lz_scalar Left() { return {{.i = 0}, 0}; }

  // The kernel's entry in the report of a call on that device.
  nlohmann::json Candidate(const char* operation, const char* kernel, const std::vector<lz_tensor>& tensors,
                           const char* device, const std::vector<lz_scalar>& scalars) {
    Engine& engine = Engine::Get();
    Request request(*engine.Find(operation));
    std::copy(tensors.begin(), tensors.end(), request.tensors.begin());
    std::copy(scalars.begin(), scalars.end(), request.scalars.begin());
    auto text = engine.Explain(request, device);
    if (!text.ok()) return {{"reasons", {{{"code", text.status().Text()}}}}, {"terms", nlohmann::json::array()}};
    const auto report = nlohmann::json::parse(*text);
    for (const auto& c : report["candidates"]) {
      if (c["kernel_id"] == kernel) return c;
    }
    return {{"reasons", {{{"code", "no candidate"}}}}, {"terms", nlohmann::json::array()}};
  }

  // "" if the kernel is admissible for the call on that device, else the codes of its reasons.
  std::string Refusal(const char* operation, const char* kernel, const std::vector<lz_tensor>& tensors,
                      const char* device = "h100", const std::vector<lz_scalar>& scalars = {}) {
    const auto candidate = Candidate(operation, kernel, tensors, device, scalars);
    std::string codes;
    for (const auto& reason : candidate["reasons"]) codes += reason["code"].get<std::string>() + " ";
    return codes;
  }

  // The kernel's priority for the call on that device, where it may lack code for it; -1: another reason refuses it.
  int Priority(const char* operation, const char* kernel, const std::vector<lz_tensor>& tensors, const char* device,
               const std::vector<lz_scalar>& scalars = {}) {
    const auto c = Candidate(operation, kernel, tensors, device, scalars);
    const bool built_or_not =
        c["reasons"].empty() || (c["reasons"].size() == 1 && c["reasons"][0]["code"] == "NOT_BUILT");
    if (!built_or_not) return -1;
    return c["preference"].is_null() ? c["default_priority"].get<int>() : c["preference"]["priority"].get<int>();
  }

  void RunsOnHopperNotOnTuring(const char* operation, const char* kernel, const std::vector<lz_tensor>& tensors,
                               const std::vector<lz_scalar>& scalars = {}) {
    EXPECT_EQ(Refusal(operation, kernel, tensors, "h100", scalars), "");
    EXPECT_EQ(Refusal(operation, kernel, tensors, "h200", scalars), "");
    EXPECT_TRUE(Refusal(operation, kernel, tensors, "t4", scalars).starts_with("NOT_BUILT "));
    EXPECT_NE(Refusal(operation, kernel, tensors, "cpu", scalars), "");
    EXPECT_NE(Refusal(operation, kernel, tensors, "mi300x", scalars), "");
  }

 private:
  std::deque<std::vector<int64_t>> sizes_;
};

}  // namespace lz
