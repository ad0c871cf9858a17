// Pins every size, offset and number of the C ABI: a mistake here is a break for plugins that are already built.
#include <gtest/gtest.h>

#include <cstddef>

#include "layerzero/c_abi.h"
#include "layerzero/kv_abi.h"
#include "layerzero/tensor_ref.h"
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif

namespace {

#define LZ_FIELD(type, field, offset) static_assert(offsetof(type, field) == (offset))

static_assert(LZ_ABI_MAJOR == 1);
static_assert(sizeof(void*) == 8 && sizeof(void (*)()) == 8);

static_assert(sizeof(lz_device) == 8);
LZ_FIELD(lz_device, type, 0);
LZ_FIELD(lz_device, id, 4);
static_assert(sizeof(lz_dtype) == 4);
LZ_FIELD(lz_dtype, code, 0);
LZ_FIELD(lz_dtype, bits, 1);
LZ_FIELD(lz_dtype, lanes, 2);

static_assert(sizeof(lz_tensor) == 48);
LZ_FIELD(lz_tensor, data, 0);
LZ_FIELD(lz_tensor, device, 8);
LZ_FIELD(lz_tensor, ndim, 16);
LZ_FIELD(lz_tensor, dtype, 20);
LZ_FIELD(lz_tensor, shape, 24);
LZ_FIELD(lz_tensor, strides, 32);
LZ_FIELD(lz_tensor, byte_offset, 40);

static_assert(sizeof(lz_scalar) == 16);
LZ_FIELD(lz_scalar, value, 0);
LZ_FIELD(lz_scalar, given, 8);

static_assert(sizeof(lz_parallel) == 24);
LZ_FIELD(lz_parallel, run, 0);
LZ_FIELD(lz_parallel, self, 8);
LZ_FIELD(lz_parallel, num_threads, 16);

static_assert(sizeof(lz_kernel_args) == 64);
LZ_FIELD(lz_kernel_args, size, 0);
LZ_FIELD(lz_kernel_args, tensors, 8);
LZ_FIELD(lz_kernel_args, scalars, 16);
LZ_FIELD(lz_kernel_args, axes, 24);
LZ_FIELD(lz_kernel_args, workspace, 32);
LZ_FIELD(lz_kernel_args, workspace_bytes, 40);
LZ_FIELD(lz_kernel_args, stream, 48);
LZ_FIELD(lz_kernel_args, parallel, 56);

static_assert(sizeof(lz_plugin_kernel) == 40);
LZ_FIELD(lz_plugin_kernel, size, 0);
LZ_FIELD(lz_plugin_kernel, version, 4);
LZ_FIELD(lz_plugin_kernel, kernel_id, 8);
LZ_FIELD(lz_plugin_kernel, operation, 16);
LZ_FIELD(lz_plugin_kernel, launch, 24);
LZ_FIELD(lz_plugin_kernel, workspace, 32);

static_assert(sizeof(lz_plugin) == 40);
LZ_FIELD(lz_plugin, size, 0);
LZ_FIELD(lz_plugin, abi_major, 4);
LZ_FIELD(lz_plugin, name, 8);
LZ_FIELD(lz_plugin, version, 16);
LZ_FIELD(lz_plugin, kernels, 24);
LZ_FIELD(lz_plugin, num_kernels, 32);

static_assert(sizeof(lz_error) == 48);
LZ_FIELD(lz_error, code, 4);
LZ_FIELD(lz_error, field, 8);
LZ_FIELD(lz_error, wanted, 16);
LZ_FIELD(lz_error, got, 24);
LZ_FIELD(lz_error, fix, 32);
LZ_FIELD(lz_error, text, 40);

static_assert(sizeof(lz_request) == 72);
LZ_FIELD(lz_request, size, 0);
LZ_FIELD(lz_request, flags, 4);
LZ_FIELD(lz_request, policy, 8);
LZ_FIELD(lz_request, op, 16);
LZ_FIELD(lz_request, tensors, 24);
LZ_FIELD(lz_request, scalars, 32);
LZ_FIELD(lz_request, stream, 40);
LZ_FIELD(lz_request, workspace, 48);
LZ_FIELD(lz_request, workspace_bytes, 56);
LZ_FIELD(lz_request, parallel, 64);

static_assert(sizeof(lz_param) == 24);
LZ_FIELD(lz_param, name, 0);
LZ_FIELD(lz_param, choices, 8);
LZ_FIELD(lz_param, kind, 16);
LZ_FIELD(lz_param, optional, 20);

static_assert(sizeof(lz_op_info) == 40);
LZ_FIELD(lz_op_info, num_inputs, 4);
LZ_FIELD(lz_op_info, num_outputs, 8);
LZ_FIELD(lz_op_info, num_scalars, 12);
LZ_FIELD(lz_op_info, name, 16);
LZ_FIELD(lz_op_info, tensors, 24);
LZ_FIELD(lz_op_info, scalars, 32);

// Append only: what stands here stays; a new function goes behind the last one.
static_assert(sizeof(lz_api) == 184);
LZ_FIELD(lz_api, abi_major, 4);
LZ_FIELD(lz_api, build_id, 8);
LZ_FIELD(lz_api, version, 16);
LZ_FIELD(lz_api, last_error, 24);
LZ_FIELD(lz_api, find, 32);
LZ_FIELD(lz_api, output_shapes, 40);
LZ_FIELD(lz_api, select, 48);
LZ_FIELD(lz_api, workspace_bytes, 56);
LZ_FIELD(lz_api, run, 64);
LZ_FIELD(lz_api, plan_kernel_id, 72);
LZ_FIELD(lz_api, explain, 80);
LZ_FIELD(lz_api, contracts, 88);
LZ_FIELD(lz_api, configure, 96);
LZ_FIELD(lz_api, load_config, 104);
LZ_FIELD(lz_api, load_plugin, 112);
LZ_FIELD(lz_api, invalidate, 120);
LZ_FIELD(lz_api, op_info, 128);
LZ_FIELD(lz_api, policy_scope, 136);
LZ_FIELD(lz_api, site_new, 144);
LZ_FIELD(lz_api, site_free, 152);
LZ_FIELD(lz_api, site_select, 160);
LZ_FIELD(lz_api, site_run, 168);
LZ_FIELD(lz_api, kv, 176);

static_assert(sizeof(lz_kv_config) == 32 && sizeof(lz_kv_copy) == 8 && sizeof(lz_kv_stats) == 64);
LZ_FIELD(lz_kv_config, num_blocks, 8);
LZ_FIELD(lz_kv_config, prefix_sharing, 24);
LZ_FIELD(lz_kv_stats, num_blocks, 8);
LZ_FIELD(lz_kv_stats, num_allocated_tokens, 56);
static_assert(sizeof(lz_kv_api) == 136);
LZ_FIELD(lz_kv_api, create, 8);
LZ_FIELD(lz_kv_api, append, 32);
LZ_FIELD(lz_kv_api, release, 64);
LZ_FIELD(lz_kv_api, stats, 128);
static_assert(LZ_KV_CONTIGUOUS == 0 && LZ_KV_PAGED == 1 && LZ_KV_VIRTUAL == 2 && LZ_KV_UNIFIED == 3);

static_assert(LZ_OK == 0 && LZ_INVALID_REQUEST == 1 && LZ_WRONG_TYPE == 2 && LZ_NO_KERNEL == 3 &&
              LZ_UNKNOWN_NAME == 4 && LZ_CONFIG == 5 && LZ_NOT_INSTALLED == 6 && LZ_KERNEL_FAILED == 7 &&
              LZ_VERSION_MISMATCH == 8 && LZ_GRAPH_UNSAFE == 9 && LZ_HOST_KERNEL == 10 && LZ_INTERNAL == 11 &&
              LZ_CACHE_FULL == 12 && LZ_KERNEL_REFUSED == 13 && LZ_CONTEXT_LOST == 14 && LZ_OUT_OF_MEMORY == 15 &&
              LZ_UNTRUSTED_FILE == 16);
static_assert(LZ_LAUNCH_DONE == 0 && LZ_LAUNCH_INVALID_DATA == 1 && LZ_LAUNCH_INVALID_INDEX == 2 &&
              LZ_LAUNCH_REFUSED == 0x4C5A);
static_assert(LZ_TENSOR == 0 && LZ_INT == 1 && LZ_FLOAT == 2 && LZ_BOOL == 3 && LZ_CHOICE == 4);
static_assert(LZ_FLAG_CAPTURING == 1 && LZ_FLAG_REQUIRES_GRAD == 2);

TEST(CAbi, ServesItsOwnMajorOnly) {
  EXPECT_NE(lz_get_api(LZ_ABI_MAJOR, sizeof(lz_api)), nullptr);
  EXPECT_NE(lz_get_api(LZ_ABI_MAJOR, offsetof(lz_api, op_info)), nullptr);  // a program built before the last functions
  EXPECT_EQ(lz_get_api(LZ_ABI_MAJOR + 1, sizeof(lz_api)), nullptr);
  EXPECT_EQ(lz_get_api(LZ_ABI_MAJOR, sizeof(lz_api) + 8), nullptr);  // a newer program on this library
}

TEST(CAbi, TensorHasDLPacksLayout) {
#if __has_include(<dlpack/dlpack.h>)
  static_assert(sizeof(lz_tensor) == sizeof(DLTensor));
  static_assert(offsetof(lz_tensor, data) == offsetof(DLTensor, data));
  static_assert(offsetof(lz_tensor, device) == offsetof(DLTensor, device));
  static_assert(offsetof(lz_tensor, ndim) == offsetof(DLTensor, ndim));
  static_assert(offsetof(lz_tensor, dtype) == offsetof(DLTensor, dtype));
  static_assert(offsetof(lz_tensor, shape) == offsetof(DLTensor, shape));
  static_assert(offsetof(lz_tensor, strides) == offsetof(DLTensor, strides));
  static_assert(offsetof(lz_tensor, byte_offset) == offsetof(DLTensor, byte_offset));
  static_assert(sizeof(lz_device) == sizeof(DLDevice) && sizeof(lz_dtype) == sizeof(DLDataType));
  static_assert(layerzero::kBF16.code == kDLBfloat && layerzero::kBool.code == kDLBool && kDLCUDA == 2);

  float data[6];
  int64_t shape[] = {2, 3};
  DLTensor t{};
  t.data = data;
  t.device = {kDLCPU, 0};
  t.ndim = 2;
  t.dtype = {kDLFloat, 32, 1};
  t.shape = shape;
  layerzero::TensorRef ref = layerzero::TensorRef::FromDLPack(t);  // no strides: contiguous
  const lz_tensor view = ref.View();
  EXPECT_EQ(view.data, data);
  EXPECT_EQ(view.strides[0], 3);
  EXPECT_EQ(view.strides[1], 1);
#else
  GTEST_SKIP() << "no dlpack/dlpack.h; set LZ_DLPACK_INCLUDE or build with .venv, whose apache-tvm-ffi brings it";
#endif
}

}  // namespace
