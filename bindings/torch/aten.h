// What the operators need of torch, through its C shims alone: tensors by handle, the current stream, its threads.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <string>

#include "core/dtype.h"
#include "core/limits.h"
#include "core/status.h"
#include "layerzero/c_abi.h"

namespace lz::torch_ops {

// Throws std::runtime_error, which the dispatcher turns into Python's RuntimeError.
[[noreturn]] void Fail(const std::string& text);
// The same, and keeps the parts for the Python side: see layerzero_torch_last_error.
[[noreturn]] void Fail(const Status& status, std::string explanation = {});

// What the calling thread's last Fail(status) was about. Strings live until its next one.
struct LastError {
  int32_t code;
  const char *field, *wanted, *got, *fix, *text;
  const char* explanation;  // JSON of the selection, or nullptr
};
const LastError* TakeLastError();  // nullptr: none since the last call

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
// Fills a tensor of floats with numbers of [0, 1) from the default generator of its device.
void FillUniform(const Handle& tensor);
// A second handle of the same tensor.
AtenTensorHandle Share(const Handle& tensor);

void* CurrentStream(lz_device device);
lz_parallel Threads();

}  // namespace lz::torch_ops
