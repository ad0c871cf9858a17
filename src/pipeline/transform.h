// What a plan does to tensors in host memory around a kernel: dense copies, casts, results moved to the caller's
// layout.
#pragma once

#include <array>
#include <cstdint>

#include "pipeline/filter.h"
#include "pipeline/request_bytes.h"

namespace lz {

inline constexpr uint64_t kWorkspaceAlignment = 64;
constexpr uint64_t AlignWorkspace(uint64_t n) {
  return (n + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

// Elements of one tensor into another of the same shape and dtype that does not overlap it.
void CopyStrided(const lz_tensor& from, const lz_tensor& to);

// Bytes that the copies of a request need, all of them together.
uint64_t TransformBytes(const Transforms& transforms, const Request& request);

// Whether int32 holds every value of an index input in host memory; the error is of the caller's data.
Status IndicesFit(const Request& request, size_t input);

// The tensors of one call as its kernel sees them.
class TransformedTensors {
 public:
  // Copies into `memory`, which has room for TransformBytes. An error: IndicesFit's.
  Status Enter(const Transforms& transforms, const Request& request, char* memory);
  // Moves results to where the caller wants them.
  void Leave() const;
  const lz_tensor* tensors() const { return tensors_.data(); }

 private:
  void PointTo(size_t i, char* memory, DType dtype);

  const Request* request_ = nullptr;
  uint32_t outputs_ = 0;
  std::array<lz_tensor, kMaxTensors> tensors_;
  std::array<std::array<int64_t, kMaxRank>, kMaxTensors> strides_;
};

}  // namespace lz
