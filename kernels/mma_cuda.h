// Products of 16 x 16 by 16 x 8 matrices by a warp and the loads that feed them; in emulation the same by plain C++.
#pragma once

#include "kernels/cuda.h"

#ifdef __CUDACC__
namespace lz {

#ifdef LZ_CUDA_EMULATED
// f(of), of(lane): what that lane of the warp has in `mine`.
template <class V, class F>
void WithLanes(const V& mine, const char* what, F&& f) {
  emulation::Publish(reinterpret_cast<uint64_t>(&mine));
  emulation::WaitForLanes(emulation::kAllLanes, what);
  f([](int lane) -> const V& {
    return *reinterpret_cast<const V*>(emulation::PublishedBy(lane, emulation::kAllLanes));
  });
  emulation::WaitForLanes(emulation::kAllLanes, what);
}
#endif

// Four matrices of 8 rows of 16 bytes: lanes 8 i to 8 i + 7 name the rows of matrix i, in shared memory. Lane l gets
// row l / 4, 16-bit elements 2 (l % 4) and the next; transposed, column l / 4 of rows 2 (l % 4) and the next.
template <bool kTransposed>
__device__ void LoadMatrices(uint32_t (&to)[4], const void* row) {
#ifdef LZ_CUDA_EMULATED
  const int lane = emulation::Lane(), a = lane / 4, b = 2 * (lane % 4);
  const uint4* const mine = static_cast<const uint4*>(row);
  WithLanes(mine, "ldmatrix", [&](auto&& of) {
    for (int i = 0; i < 4; ++i) {
      const auto element = [&](int r, int c) {
        const uint4 whole = *of(8 * i + r);
        uint16_t elements[8];
        memcpy(elements, &whole, sizeof(whole));
        return uint32_t(elements[c]);
      };
      to[i] = kTransposed ? element(b, a) | element(b + 1, a) << 16 : element(a, b) | element(a, b + 1) << 16;
    }
  });
#else
  const auto at = uint32_t(__cvta_generic_to_shared(row));
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
#endif
}

template <class T>
union Pair {
  T v[2];
  uint32_t bits;
};
template <class T>
__device__ uint32_t PackPair(float low, float high) {
  return Pair<T>{{FromFloat<T>(low), FromFloat<T>(high)}}.bits;
}

// sum += a b of T (__half or __nv_bfloat16) in FP32. Lane l, g = l / 4, t = l % 4: a holds rows g, g + 8, g, g + 8 at
// columns 2 t, 2 t, 2 t + 8, 2 t + 8 and the next; b rows 2 t and 2 t + 8 and the next of column g; sum rows g, g, g +
// 8, g + 8 at columns 2 t and the next.
template <class T>
__device__ void Multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef LZ_CUDA_EMULATED
  struct Parts {
    Pair<T> a[4], b[2];
  } mine;
  for (int i = 0; i < 4; ++i) mine.a[i].bits = a[i];
  mine.b[0].bits = b0, mine.b[1].bits = b1;
  const int lane = emulation::Lane(), g = lane / 4, t = lane % 4;
  WithLanes(mine, "mma", [&](auto&& of) {
    for (int i = 0; i < 4; ++i) {
      const int column = 2 * t + i % 2, below = i / 2;
      for (int k = 0; k < 16; ++k) {
        const Parts &left = of(4 * g + k % 8 / 2), &right = of(4 * column + k % 8 / 2);
        sum[i] += ToFloat(left.a[below + 2 * (k / 8)].v[k % 2]) * ToFloat(right.b[k / 8].v[k % 2]);
      }
    }
  });
#else
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
#endif
}

}  // namespace lz
#endif  // __CUDACC__
