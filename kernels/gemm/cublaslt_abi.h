// The part of cuBLASLt's C interface that is used, versions 12 and 13, declared here so that no header of CUDA is
// needed. Names and numbers are those of NVIDIA's documentation, "cuBLASLt Datatypes Reference".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/library.h"

namespace lz::cublaslt {

using Object = void*;  // a handle, a descriptor, a layout or a preference

struct Algo {  // cublasLtMatmulAlgo_t
  uint64_t data[8];
};
struct HeuristicResult {  // cublasLtMatmulHeuristicResult_t
  Algo algo;
  size_t workspace_bytes;
  int32_t status;
  float waves;
  int32_t reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96);

enum Status : int32_t {  // cublasStatus_t
  kSuccess = 0,
  kAllocFailed = 3,
  kInvalidValue = 7,
  kArchMismatch = 8,
  kNotSupported = 15,
};
enum Type : int32_t { kF32 = 0, kF16 = 2, kBF16 = 14 };  // cudaDataType
inline constexpr int32_t kComputeF32 = 68;               // CUBLAS_COMPUTE_32F: no TF32
inline constexpr int32_t kNoTranspose = 0, kTranspose = 1;
enum DescAttribute : int32_t { kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8 };
enum LayoutAttribute : int32_t { kBatchCount = 5, kBatchOffset = 6 };
enum PreferenceAttribute : int32_t {
  kMaxWorkspaceBytes = 1,
  kReductionMask = 3,
  kMinAlignmentA = 5,  // B, C and D follow
};
// Sums of parts of k stay in the compute type: those in the output's dtype would be rounded more than once.
inline constexpr uint32_t kReductionInComputeType = 2;
// An epilogue is the sum of what it does, or kPlain. CUBLASLT_EPILOGUE_GELU is the tanh form.
enum Epilogue : int32_t { kPlain = 1, kRelu = 2, kBias = 4, kGeluTanh = 32 };

struct Api {
  size_t (*version)() = nullptr;
  int (*create)(Object* handle) = nullptr;
  int (*desc_create)(Object* desc, int compute, int scale) = nullptr;
  int (*desc_set)(Object desc, int attribute, const void* value, size_t bytes) = nullptr;
  int (*desc_destroy)(Object desc) = nullptr;
  int (*layout_create)(Object* layout, int type, uint64_t rows, uint64_t columns, int64_t ld) = nullptr;
  int (*layout_set)(Object layout, int attribute, const void* value, size_t bytes) = nullptr;
  int (*layout_destroy)(Object layout) = nullptr;
  int (*preference_create)(Object* preference) = nullptr;
  int (*preference_set)(Object preference, int attribute, const void* value, size_t bytes) = nullptr;
  int (*preference_destroy)(Object preference) = nullptr;
  int (*heuristic)(Object handle, Object desc, Object a, Object b, Object c, Object d, Object preference, int wanted,
                   HeuristicResult* results, int* returned) = nullptr;
  int (*matmul)(Object handle, Object desc, const void* alpha, const void* a, Object a_layout, const void* b,
                Object b_layout, const void* beta, const void* c, Object c_layout, void* d, Object d_layout,
                const Algo* algo, void* workspace, size_t workspace_bytes, void* stream) = nullptr;
};

// Finds the functions; refuses the library if one is missing or its version is another.
inline void Bind(Library& library, Api* api) {
  if (!library.Find("cublasLtGetVersion", &api->version)) return;
  const size_t version = api->version(), major = version / 10000, minor = version / 100 % 100;
  if (major != 12 && major != 13) {
    return library.Refuse("cuBLASLt 12 or 13 is wanted, this is " + std::to_string(major) + "." +
                          std::to_string(minor));
  }
  (void)(library.Find("cublasLtCreate", &api->create) && library.Find("cublasLtMatmulDescCreate", &api->desc_create) &&
         library.Find("cublasLtMatmulDescSetAttribute", &api->desc_set) &&
         library.Find("cublasLtMatmulDescDestroy", &api->desc_destroy) &&
         library.Find("cublasLtMatrixLayoutCreate", &api->layout_create) &&
         library.Find("cublasLtMatrixLayoutSetAttribute", &api->layout_set) &&
         library.Find("cublasLtMatrixLayoutDestroy", &api->layout_destroy) &&
         library.Find("cublasLtMatmulPreferenceCreate", &api->preference_create) &&
         library.Find("cublasLtMatmulPreferenceSetAttribute", &api->preference_set) &&
         library.Find("cublasLtMatmulPreferenceDestroy", &api->preference_destroy) &&
         library.Find("cublasLtMatmulAlgoGetHeuristic", &api->heuristic) &&
         library.Find("cublasLtMatmul", &api->matmul));
}

}  // namespace lz::cublaslt
