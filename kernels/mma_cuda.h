// Products of 16 x 16 by 16 x 8 matrices by a warp, the loads that feed them, and copies to shared memory that do not
// wait. Off the device (in emulation) the same by plain C++ over memory that the warp shares.
#pragma once

#include "kernels/cuda.h"

#ifdef __CUDACC__
namespace lz {

// Shared memory of the size that the launch gives, at a multiple of 128 bytes.
__device__ inline char* DynamicShared() {
#ifdef __CUDA_ARCH__
  extern __shared__ __align__(128) char dynamic_shared[];
  return dynamic_shared;
#else
  alignas(128) static char memory[232448];
  return memory;
#endif
}

// 16 bytes from global to shared memory, zeros where not `there`.
__device__ inline void CopyAsync(void* to, const void* from, bool there) {
#ifdef __CUDA_ARCH__
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(at), "l"(from), "r"(bytes) : "memory");
#else
  *static_cast<uint4*>(to) = there ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
#endif
}
__device__ inline void CommitCopies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}
__device__ inline void WaitForCopies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group 0;\n" ::: "memory");
#endif
}

#ifndef __CUDA_ARCH__
// What each lane of the warp shows the others between two calls of __syncwarp.
union LaneSlot {
  const char* row;
  uint32_t parts[6];
};
__device__ inline LaneSlot* LaneSlots() {
  static LaneSlot slots[32][kWarp];
  return slots[threadIdx.x / kWarp];
}
#endif

// Four matrices of 8 rows of 16 bytes: lanes 8 i to 8 i + 7 name the rows of matrix i. Lane l gets row l / 4, 16-bit
// elements 2 (l % 4) and the next; transposed, column l / 4 of rows 2 (l % 4) and the next.
template <bool kTransposed>
__device__ void LoadMatrices(uint32_t (&to)[4], const void* row) {
#ifdef __CUDA_ARCH__
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  }
#else
  LaneSlot* slots = LaneSlots();
  const int lane = int(threadIdx.x) % kWarp;
  slots[lane].row = static_cast<const char*>(row);
  __syncwarp();
  const auto element = [&](int matrix, int r, int c) {
    return uint32_t(reinterpret_cast<const uint16_t*>(slots[8 * matrix + r].row)[c]);
  };
  for (int i = 0; i < 4; ++i) {
    const int a = lane / 4, b = 2 * (lane % 4);
    to[i] = kTransposed ? element(i, b, a) | element(i, b + 1, a) << 16 : element(i, a, b) | element(i, a, b + 1) << 16;
  }
  __syncwarp();
#endif
}

template <class T>
__device__ uint32_t PackPair(float low, float high) {
  union {
    T v[2];
    uint32_t bits;
  } pair = {{FromFloat<T>(low), FromFloat<T>(high)}};
  return pair.bits;
}

// sum += a b of T (__half or __nv_bfloat16) in FP32. Lane l, g = l / 4, t = l % 4: a holds rows g, g + 8, g, g + 8 at
// columns 2 t, 2 t, 2 t + 8, 2 t + 8 and the next; b rows 2 t and 2 t + 8 and the next of column g; sum rows g, g, g +
// 8, g + 8 at columns 2 t and the next.
template <class T>
__device__ void Multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  LaneSlot* slots = LaneSlots();
  const int lane = int(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) slots[lane].parts[i] = a[i];
  slots[lane].parts[4] = b0, slots[lane].parts[5] = b1;
  __syncwarp();
  const auto part = [&](int of, int which, int half) {
    union {
      uint32_t bits;
      T v[2];
    } pair = {slots[of].parts[which]};
    return ToFloat(pair.v[half]);
  };
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * t + i % 2, below = i / 2;
    for (int k = 0; k < 16; ++k) {
      sum[i] += part(4 * g + k % 8 / 2, below + 2 * (k / 8), k % 2) * part(4 * column + k % 8 / 2, 4 + k / 8, k % 2);
    }
  }
  __syncwarp();
#endif
}

// Lets a kernel have more dynamic shared memory than the usual 48 KiB.
template <class Kernel>
int32_t AllowShared(Kernel* kernel, int bytes) {
#ifdef __NVCC__
  return CudaCode(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
#else
  return kernel && bytes > 0 ? LZ_LAUNCH_DONE : CudaCode(cudaErrorInvalidValue);
#endif
}

}  // namespace lz
#endif  // __CUDACC__
