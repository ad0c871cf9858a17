// What the operators need of torch, through its C shims alone: tensors by handle, the current stream, its threads.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <string>

#include "core/dtype.h"
#include "core/limits.h"
#include "layerzero/c_abi.h"

namespace lz::torch_ops {

// Throws std::runtime_error, which the dispatcher turns into Python's RuntimeError.
[[noreturn]] void Fail(const std::string& text);

// A tensor handle that is freed with its owner.
class Handle {
 public:
  Handle() = default;
  explicit Handle(AtenTensorHandle raw) : raw_(raw) {}
  Handle(Handle&& other) noexcept : raw_(other.Release()) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Handle() {
    if (raw_) aoti_torch_delete_tensor_object(raw_);
  }
  AtenTensorHandle get() const { return raw_; }
  AtenTensorHandle Release() {
    AtenTensorHandle raw = raw_;
    raw_ = nullptr;
    return raw;
  }
  explicit operator bool() const { return raw_ != nullptr; }

 private:
  AtenTensorHandle raw_ = nullptr;
};

// The tensor's memory; shape and strides stay torch's and live as long as the handle.
lz_tensor ViewOf(const Handle& tensor);
// A new tensor with row-major strides of `shape`.
Handle NewTensor(const int64_t* shape, int32_t ndim, DType dtype, lz_device where);
// A second handle of the same tensor.
AtenTensorHandle Share(const Handle& tensor);

void* CurrentStream(lz_device device);
lz_parallel Threads();

}  // namespace lz::torch_ops
