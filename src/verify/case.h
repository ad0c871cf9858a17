// One line of a .cases file as a call: tensors with their memory, scalars, or the field for which it must be refused.
// Grammar: tests/conformance/README.md.
//   Result<Case> c = ParseCase(*op, "input=bf16[3,64]@pad weight=bf16[64] eps=1e-5");
//   Request request = c->MakeRequest();
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "pipeline/request.h"
#include "registry/operation.h"

#define LZ_VERIFY_API __attribute__((visibility("default")))

namespace lz::verify {

// A tensor that owns its memory. Bytes between and around its elements are kGuard; base and guards are 64-byte aligned.
class LZ_VERIFY_API OwnedTensor {
 public:
  static constexpr size_t kGuardBytes = 64;
  static constexpr unsigned char kGuard = 0xFF;  // a NaN in every float format, -1 in every integer

  OwnedTensor() = default;  // absent
  // `strides` in elements, not negative; `offset`: elements between an aligned address and the first element.
  OwnedTensor(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides, int64_t offset = 0);
  static OwnedTensor RowMajor(DType dtype, std::vector<int64_t> shape);
  // A tensor with an aligned address and no elements, which is all that binding reads.
  static OwnedTensor WithoutElements(DType dtype, std::vector<int64_t> shape);

  bool given() const { return given_; }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<int64_t>& strides() const { return strides_; }
  int64_t offset() const { return offset_; }
  int64_t numel() const;
  char* data() { return reinterpret_cast<char*>(memory_.data()) + kGuardBytes; }
  const char* data() const { return reinterpret_cast<const char*>(memory_.data()) + kGuardBytes; }
  size_t num_bytes() const { return num_bytes_; }  // between the guards
  lz_tensor tensor();                              // refers to this object: valid while it is not moved

  // Calls body(flat index, element offset) in row-major order of the logical index.
  template <class Body>
  void ForEach(Body&& body) const {
    const int64_t row = shape_.empty() ? 1 : shape_.back(), step = shape_.empty() ? 0 : strides_.back();
    for (int64_t begin = 0, n = numel(); begin < n; begin += row) {
      int64_t at = ElementOffset(begin);
      for (int64_t i = 0; i < row; ++i, at += step) body(begin + i, at);
    }
  }
  int64_t ElementOffset(int64_t flat) const;
  bool GuardsIntact() const;  // true if bytes outside all elements are unchanged
  bool SameBytes(const OwnedTensor& other) const;

 private:
  struct alignas(64) Chunk {
    unsigned char bytes[64];
  };
  bool given_ = false;
  DType dtype_ = DType::kUnknown;
  std::vector<int64_t> shape_, strides_;
  int64_t offset_ = 0;
  size_t num_bytes_ = 0;
  std::vector<Chunk> memory_;
};

struct LZ_VERIFY_API Case {
  const Operation* op = nullptr;
  std::string text;
  std::string refused;               // the field that must be refused; empty: the call is valid
  std::vector<OwnedTensor> tensors;  // by input of the operation
  std::vector<lz_scalar> scalars;
  int32_t layout = 0;

  Request MakeRequest();  // borrows this case's memory
};

enum class Fills : uint8_t {
  kAll,
  kIntegers,  // floats stay NaN: sufficient for binding and for checks of index tensors
};

// An unknown name, a malformed value or shape is an error whose field is that name.
LZ_VERIFY_API Result<Case> ParseCase(const Operation& op, std::string_view line, Fills fills = Fills::kAll);

}  // namespace lz::verify
