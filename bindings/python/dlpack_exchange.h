// The parts of DLPack 1.3's C exchange API that the binding calls (the struct order is the published ABI). A tensor is
// an lz_tensor, which has the layout of DLTensor.
#pragma once

#include <cstdint>

#include "layerzero/c_abi.h"

namespace lz::python {

struct DlpackVersion {
  uint32_t major, minor;
};
struct ExchangeHeader {
  DlpackVersion version;
  ExchangeHeader* previous;
};
struct ManagedTensor {  // DLManagedTensorVersioned
  DlpackVersion version;
  void* manager;
  void (*deleter)(ManagedTensor* self);
  uint64_t flags;
  lz_tensor tensor;
};
struct ExchangeApi {
  ExchangeHeader header;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  int (*managed_tensor_to_py_object)(ManagedTensor* tensor, void** object);  // steals the tensor
  int (*dltensor_from_py_object)(void* object, lz_tensor* out);
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out);
};
inline constexpr uint32_t kDlpackMajor = 1;

}  // namespace lz::python
