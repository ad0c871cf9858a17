// Products of matrices by a warpgroup (wgmma of sm_90a): its 128 threads multiply 64 rows of `a` by kN columns of `b`,
// 16 deep, and go on while the products are made.
//   BeginProducts();  Multiply...(sum, a, b);  CommitProducts();  ...  WaitForProducts<0>();  Pin(sum);
// Until then the threads touch neither `sum` nor registers of `a`, and nobody overwrites the shared memory.
//
// Matrices in shared memory are panels: rows of 64 elements of 16 bits, the first row at a multiple of 1,024 bytes. The
// 16 bytes of a chunk are where PanelAt says, so that no two threads meet in a bank. A wider matrix is several panels.
#pragma once

#include "kernels/mma_cuda.h"

#ifdef __CUDACC__
// Defined where the functions below are: code for other devices leaves out what calls them.
#if defined(LZ_CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LZ_HAS_WARPGROUPS
#endif

namespace lz {

inline constexpr int kWarpgroup = 4 * kWarp;
inline constexpr int kPanel = 64, kPanelRow = 2 * kPanel;  // elements of a row, and its bytes
inline constexpr int kPanelGroup = 8 * kPanelRow;          // bytes of eight rows, after which the places repeat

// Bytes from a panel's first row to 16 bytes of a row.
__device__ constexpr int PanelAt(int row, int chunk) { return row * kPanelRow + (chunk ^ row % 8) * 16; }

#ifdef LZ_HAS_WARPGROUPS

// The descriptor of a matrix of panels, from byte `at` on. `panels_apart` (the leading byte offset): bytes from a panel
// to the next, which count where the rows are k (MultiplyHeld); elsewhere each panel is a matrix of its own.
__device__ inline uint64_t PanelMatrix(const void* at, int panels_apart = 16) {
#ifdef LZ_CUDA_EMULATED
  const auto address = uint64_t(static_cast<const char*>(at) - static_cast<const char*>(emulation::DynamicShared()));
#else
  const auto address = uint64_t(__cvta_generic_to_shared(at));
#endif
  constexpr uint64_t kSwizzledBy128Bytes = 1;
  return (address & 0x3ffff) >> 4 | uint64_t(panels_apart >> 4) << 16 | uint64_t(kPanelGroup >> 4) << 32 |
         kSwizzledBy128Bytes << 62;
}

#ifdef LZ_CUDA_EMULATED
// Element (row, k) of a matrix whose rows are those of its panels, or whose rows are their columns.
template <class T>
float PanelElement(uint64_t matrix, int row, int k, bool is_transposed) {
  const auto field = [&](int from) { return int(matrix >> from & 0x3fff) << 4; };
  const int repeat = field(32), panels_apart = field(16);
  int at = field(0);
  if (is_transposed) {
    at += row / kPanel * panels_apart + row % kPanel * 2 + k / 8 * repeat + k % 8 * kPanelRow;
  } else {
    at += row / 8 * repeat + row % 8 * kPanelRow + k * 2;
  }
  at ^= (at >> 7 & 7) << 4;
  T value;
  memcpy(&value, static_cast<const char*>(emulation::DynamicShared()) + at, sizeof(T));
  return ToFloat(value);
}
// Of this lane: rows g and g + 8 of its warp's 16.
template <int kN, class T, class A>
void AddProduct(float (&sum)[kN / 8][4], A&& a, uint64_t b, bool is_transposed) {
  const int t = emulation::Lane() % 4;
  for (int n = 0; n < kN / 8; ++n) {
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 16; ++k) {
        const float value = PanelElement<T>(b, n * 8 + 2 * t + i, k, is_transposed);
        sum[n][i] += a(0, k) * value;
        sum[n][2 + i] += a(1, k) * value;
      }
    }
  }
}
inline void BeginProducts() {}
inline void CommitProducts() { emulation::CommitWork(); }
template <int kGroupsLeft>
void WaitForProducts() {
  emulation::WaitForWork(kGroupsLeft);
}
template <class R, int kN>
void Pin(R (&)[kN][4]) {}
inline void CopiesAreForProducts() {}
inline void ComputeNow(float) {}
template <int kCount, bool kMore>
void SetRegisters() {}
template <class T, int kN>
void MultiplyShared(float (&sum)[kN / 8][4], uint64_t left, uint64_t right, bool is_sum) {
  emulation::WorkLater([&sum, left, right, is_sum] {
    if (!is_sum) memset(sum, 0, sizeof(sum));
    const int row = int(threadIdx.x) % kWarpgroup / kWarp * 16 + emulation::Lane() / 4;
    float rows[2][16];
    for (int i = 0; i < 32; ++i) rows[i / 16][i % 16] = PanelElement<T>(left, row + i / 16 * 8, i % 16, false);
    AddProduct<kN, T>(
        sum, [&](int below, int k) { return rows[below][k]; }, right, false);
  });
}
template <class T, int kN>
void MultiplyHeld(float (&sum)[kN / 8][4], const uint32_t (&left)[4], uint64_t right) {
  emulation::WorkLater([&sum, &left, right] {
    struct Parts {
      Pair<T> a[4];
    } mine;
    for (int i = 0; i < 4; ++i) mine.a[i].bits = left[i];
    float rows[2][16];
    WithLanes(mine, "wgmma", [&](auto&& of) {
      for (int i = 0; i < 32; ++i) {
        const int below = i / 16, k = i % 16;
        rows[below][k] = ToFloat(of(emulation::Lane() / 4 * 4 + k % 8 / 2).a[below + 2 * (k / 8)].v[k % 2]);
      }
    });
    AddProduct<kN, T>(
        sum, [&](int below, int k) { return rows[below][k]; }, right, true);
  });
}
#else

// What the threads wrote to registers of `sum` and `a` is there for the products that follow.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
// The products since the last call become a group.
__device__ inline void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
// Waits for the groups but the newest kGroupsLeft of them.
template <int kGroupsLeft>
__device__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kGroupsLeft) : "memory");
}
// Keeps the compiler from moving what a thread does with registers of products over the wait or BeginProducts (what
// CUTLASS calls warpgroup_fence_operand).
template <class R, int kN>
__device__ void Pin(R (&registers)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<R, float>) {
        asm volatile("" : "+f"(registers[n][i])::"memory");
      } else {
        asm volatile("" : "+r"(registers[n][i])::"memory");
      }
    }
  }
}
// Copies that this thread has waited for are seen by its products.
__device__ inline void CopiesAreForProducts() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
// What `x`, which is not below 0, is computed from is computed before what follows: ptxas moves arithmetic after a wait
// for products, although it is meant to be done during them.
__device__ inline void ComputeNow(float x) {
  asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p nanosleep.u32 0;\n}\n" ::"f"(x) : "memory");
}
// The registers of each thread of the warpgroup from here on; kMore: it had fewer.
template <int kCount, bool kMore>
__device__ void SetRegisters() {
  if constexpr (kMore) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
  }
}

#define LZ_SUM4(n) "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
#define LZ_SUM16(n) LZ_SUM4(n), LZ_SUM4(n + 1), LZ_SUM4(n + 2), LZ_SUM4(n + 3)
#define LZ_SUM64(n) LZ_SUM16(n), LZ_SUM16(n + 4), LZ_SUM16(n + 8), LZ_SUM16(n + 12)
#define LZ_SUMS_64 LZ_SUM16(0), LZ_SUM16(4)
#define LZ_SUMS_128 LZ_SUM64(0)
#define LZ_SUMS_256 LZ_SUM64(0), LZ_SUM64(16)
// The numbers of the operands.
#define LZ_TEXT_64                                                                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define LZ_TEXT_128                                                                                                  \
  LZ_TEXT_64                                                                                                         \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LZ_TEXT_256                                                                                                    \
  LZ_TEXT_128                                                                                                          \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "   \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, "   \
  "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
  "%126, %127"

// kN columns; `a` and `b`: the number of the first operand after the sums, and so on.
#define LZ_SHARED_PRODUCT(kN, type, a, b, adds)                                                                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " adds ", 0;\nwgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." type \
               "." type " {" LZ_TEXT_##kN "}, " a ", " b ", p, 1, 1, 0, 0;\n}\n"                                      \
               : LZ_SUMS_##kN                                                                                         \
               : "l"(left), "l"(right), "r"(int32_t(is_sum)))
#define LZ_HELD_PRODUCT(kN, type, a0, a1, a2, a3, b)                                                           \
  asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #kN "k16.f32." type \
               "." type " {" LZ_TEXT_##kN "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b ", p, 1, 1, 1;\n}\n"       \
               : LZ_SUMS_##kN                                                                                  \
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right))

// sum = left right, or sum += left right: 64 rows and kN rows, both 16 elements of one panel from there on.
template <class T, int kN>
__device__ void MultiplyShared(float (&sum)[kN / 8][4], uint64_t left, uint64_t right, bool is_sum) {
  constexpr bool kHalf = std::is_same_v<T, __half>;
  if constexpr (kN == 64 && kHalf) LZ_SHARED_PRODUCT(64, "f16", "%32", "%33", "%34");
  if constexpr (kN == 64 && !kHalf) LZ_SHARED_PRODUCT(64, "bf16", "%32", "%33", "%34");
  if constexpr (kN == 128 && kHalf) LZ_SHARED_PRODUCT(128, "f16", "%64", "%65", "%66");
  if constexpr (kN == 128 && !kHalf) LZ_SHARED_PRODUCT(128, "bf16", "%64", "%65", "%66");
  static_assert(kN == 64 || kN == 128);
}
// sum += left right: `left` in registers, as Multiply has it for the 16 rows of a warp; `right` kN columns of 16 rows
// from there on.
template <class T, int kN>
__device__ void MultiplyHeld(float (&sum)[kN / 8][4], const uint32_t (&left)[4], uint64_t right) {
  constexpr bool kHalf = std::is_same_v<T, __half>;
  if constexpr (kN == 64 && kHalf) LZ_HELD_PRODUCT(64, "f16", "%32", "%33", "%34", "%35", "%36");
  if constexpr (kN == 64 && !kHalf) LZ_HELD_PRODUCT(64, "bf16", "%32", "%33", "%34", "%35", "%36");
  if constexpr (kN == 128 && kHalf) LZ_HELD_PRODUCT(128, "f16", "%64", "%65", "%66", "%67", "%68");
  if constexpr (kN == 128 && !kHalf) LZ_HELD_PRODUCT(128, "bf16", "%64", "%65", "%66", "%67", "%68");
  if constexpr (kN == 256 && kHalf) LZ_HELD_PRODUCT(256, "f16", "%128", "%129", "%130", "%131", "%132");
  if constexpr (kN == 256 && !kHalf) LZ_HELD_PRODUCT(256, "bf16", "%128", "%129", "%130", "%131", "%132");
  static_assert(kN == 64 || kN == 128 || kN == 256);
}

#undef LZ_SHARED_PRODUCT
#undef LZ_HELD_PRODUCT
#undef LZ_TEXT_64
#undef LZ_TEXT_128
#undef LZ_TEXT_256
#undef LZ_SUMS_64
#undef LZ_SUMS_128
#undef LZ_SUMS_256
#undef LZ_SUM64
#undef LZ_SUM16
#undef LZ_SUM4
#endif  // LZ_CUDA_EMULATED
#endif  // LZ_HAS_WARPGROUPS

}  // namespace lz
#endif  // __CUDACC__
