// A plan's transforms of tensors in host memory around a kernel: dense copies, casts, results moved to the
// caller's layout.
#pragma once

#include <array>
#include <cstdint>

#include "base/export.h"
#include "pipeline/filter.h"
#include "pipeline/request_bytes.h"

namespace lz {

inline constexpr uint64_t kWorkspaceAlignment = 64;
constexpr uint64_t AlignWorkspace(uint64_t n) {
  return (n + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

// Copies the elements of one tensor to another of the same shape and dtype that does not overlap it.
void CopyStrided(const lz_tensor& from, const lz_tensor& to);

// Total bytes of the copies of a request.
uint64_t TransformBytes(const Transforms& transforms, const Request& request);

// Checks that int32 holds every value of an index input in host memory; otherwise the caller's data are at fault.
LZ_OWN Status IndicesFit(const Request& request, size_t input);

// The tensors of one call as its kernel sees them.
class TransformedTensors {
 public:
  // Copies into `memory`, which has room for TransformBytes. Errors are those of IndicesFit.
  Status Enter(const Transforms& transforms, const Request& request, char* memory);
  // Moves results to the caller's tensors.
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
