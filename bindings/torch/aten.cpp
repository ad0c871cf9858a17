#include "aten.h"

#include <dlfcn.h>
#include <pthread.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <array>
#include <atomic>
#include <optional>
#include <stdexcept>

namespace lz::torch_ops {
namespace {

// torch's numbers of dtypes may change: asked once.
const std::array<int32_t, size_t(DType::kCount)>& DTypeNumbers() {
  static const auto numbers = [] {
    std::array<int32_t, size_t(DType::kCount)> n;
    n.fill(-1);
    n[size_t(DType::kF64)] = aoti_torch_dtype_float64();
    n[size_t(DType::kF32)] = aoti_torch_dtype_float32();
    n[size_t(DType::kF16)] = aoti_torch_dtype_float16();
    n[size_t(DType::kBF16)] = aoti_torch_dtype_bfloat16();
    n[size_t(DType::kF8E4M3)] = aoti_torch_dtype_float8_e4m3fn();
    n[size_t(DType::kF8E5M2)] = aoti_torch_dtype_float8_e5m2();
    n[size_t(DType::kF8E8M0)] = torch_dtype_float8_e8m0fnu();
    n[size_t(DType::kF4E2M1x2)] = torch_dtype_float4_e2m1fn_x2();
    n[size_t(DType::kI64)] = aoti_torch_dtype_int64();
    n[size_t(DType::kI32)] = aoti_torch_dtype_int32();
    n[size_t(DType::kI16)] = aoti_torch_dtype_int16();
    n[size_t(DType::kI8)] = aoti_torch_dtype_int8();
    n[size_t(DType::kU8)] = aoti_torch_dtype_uint8();
    n[size_t(DType::kBool)] = aoti_torch_dtype_bool();
    return n;
  }();
  return numbers;
}

void Check(AOTITorchError error, const char* what) {
  if (error != 0) Fail(std::string("torch failed: ") + what);
}

struct Kept {
  ErrorParts parts;
  std::string text, explanation;
  LastError error{};
  bool taken = true;
};
Kept& KeptError() {
  static thread_local Kept kept;
  return kept;
}

}  // namespace

void Fail(const std::string& text) { throw std::runtime_error(text); }

void Fail(const Status& status, std::string explanation) {
  Kept& k = KeptError();
  k.parts = status.parts();
  k.text = status.Text();
  k.explanation = std::move(explanation);
  k.error = {int32_t(status.code()),
             k.parts.field.c_str(),
             k.parts.wanted.c_str(),
             k.parts.got.c_str(),
             k.parts.fix.c_str(),
             k.text.c_str(),
             k.explanation.empty() ? nullptr : k.explanation.c_str()};
  k.taken = false;
  Fail(k.text);
}

const LastError* TakeLastError() {
  Kept& k = KeptError();
  if (k.taken) return nullptr;
  k.taken = true;
  return &k.error;
}

lz_tensor ViewOf(const Handle& tensor) {
  lz_tensor t{};
  int64_t ndim = 0;
  int32_t dtype = 0, device = 0, index = 0;
  Check(aoti_torch_get_dim(tensor.get(), &ndim), "get_dim");
  Check(aoti_torch_get_sizes(tensor.get(), &t.shape), "get_sizes");
  Check(aoti_torch_get_strides(tensor.get(), &t.strides), "get_strides");
  Check(aoti_torch_get_dtype(tensor.get(), &dtype), "get_dtype");
  Check(aoti_torch_get_device_type(tensor.get(), &device), "get_device_type");
  Check(aoti_torch_get_device_index(tensor.get(), &index), "get_device_index");
  Check(aoti_torch_get_data_ptr(tensor.get(), &t.data), "get_data_ptr of a tensor without memory");
  t.ndim = int32_t(ndim);
  t.device = {device == aoti_torch_device_type_cuda() ? 2 : 1, index < 0 ? 0 : index};
  t.dtype = {255, 0, 1};  // a dtype that no contract takes: the check of the arguments names it
  for (size_t i = 1; i < DTypeNumbers().size(); ++i) {
    if (DTypeNumbers()[i] == dtype) t.dtype = {kDTypes[i].dlpack_code, kDTypes[i].bits, kDTypes[i].lanes};
  }
  return t;
}

Handle NewTensor(const int64_t* shape, int32_t ndim, DType dtype, lz_device where) {
  int64_t strides[kMaxRank], step = 1;
  for (int32_t i = ndim - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
  const bool cuda = where.type == 2;
  AtenTensorHandle made = nullptr;
  Check(aoti_torch_empty_strided(ndim, shape, strides, DTypeNumbers()[size_t(dtype)],
                                 cuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu(), where.id, &made),
        "empty_strided");
  return Handle(made);
}

void FillUniform(const Handle& tensor) {
  namespace stable = torch::stable::detail;
  StableIValue stack[] = {stable::from(Share(tensor)), stable::from(0.0), stable::from(1.0),
                          stable::from(std::nullopt)};
  Check(aoti_torch_call_dispatcher("aten::uniform_", "", stack), "uniform_");
  Handle(stable::to<AtenTensorHandle>(stack[0]));
}

AtenTensorHandle Share(const Handle& tensor) {
  AtenTensorHandle second = nullptr;
  Check(aoti_torch_new_tensor_handle(tensor.get(), &second), "new_tensor_handle");
  return second;
}

void* CurrentStream(lz_device device) {
  if (device.type != 2) return nullptr;
  // The shim lives in libtorch_cuda.so, which a CPU build of torch lacks.
  using Get = AOTITorchError (*)(int32_t, void**);
  static const Get get = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library ? reinterpret_cast<Get>(dlsym(library, "aoti_torch_get_current_cuda_stream")) : nullptr;
  }();
  void* stream = nullptr;
  if (!get || get(device.id, &stream) != 0)
    Fail("torch has no current CUDA stream for device " + std::to_string(device.id));
  return stream;
}

lz_parallel Threads() {
  // libgomp can hang in a forked child whose parent used its threads.
  static std::atomic<bool> forked{false};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
  (void)registered;
  if (forked.load(std::memory_order_relaxed)) return {nullptr, nullptr, 1};
  const auto run = [](void*, int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
    torch_parallel_for(begin, end, grain, body, context);
  };
  uint32_t threads = 1;
  Check(torch_get_num_threads(&threads), "get_num_threads");
  return {run, nullptr, int32_t(threads)};
}

}  // namespace lz::torch_ops
