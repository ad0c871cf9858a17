// Copies from global into shared memory that go on while the threads work (cp.async, from sm_80 on).
//   CopyAsync16(&tile[i], x + i);  CommitCopies();  ...  WaitForCopies<0>();  __syncthreads();
#pragma once

#include <cstdint>

namespace lz {

#if defined(LZ_CUDA_EMULATED)
inline void CopyAsync16(void* shared, const void* global, int real_bytes = 16) {
  emulation::CopyLater(shared, global, 16, size_t(real_bytes));
}
inline void CommitCopies() { emulation::CommitCopies(); }
template <int kGroupsLeft>
void WaitForCopies() {
  emulation::WaitForCopies(kGroupsLeft);
}
#elif defined(__CUDACC__)
// 16 bytes, both addresses multiples of 16; bytes after the first `real_bytes` become 0 and are not read.
__device__ inline void CopyAsync16(void* shared, const void* global, int real_bytes = 16) {
  const auto at = uint32_t(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(at), "l"(global), "r"(real_bytes) : "memory");
}
// The copies that this thread has begun since the last call become a group.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits for this thread's groups but the newest kGroupsLeft of them.
template <int kGroupsLeft>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroupsLeft) : "memory");
}
#endif

}  // namespace lz
