// Linear by OpenBLAS's cblas_sgemm: f32, contiguous; a build for pthreads, which is set to one thread. Named by the
// user: LAYERZERO_LIBRARIES="openblas=libopenblas.so.0".
// Workspace: none. Source: OpenBLAS. FP32 sums in the order of its kernel for this core type.
#include <algorithm>
#include <cstring>
#include <limits>

#include "core/kernel.h"
#include "kernels/gemm/parallel.h"
#include "kernels/library.h"
#include "ops/mlp/linear.h"

namespace lz {
namespace {

// CBLAS: row-major matrices; neither or the second operand transposed.
using Sgemm = void(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                   int lda, const float* b, int ldb, float beta, float* c, int ldc);
constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;

Sgemm* g_sgemm = nullptr;

void Bind(Library& library) {
  constexpr int kPthreads = 1;
  int (*parallel)() = nullptr;
  char* (*config)() = nullptr;
  void (*set_threads)(int) = nullptr;
  if (!library.Find("cblas_sgemm", &g_sgemm) || !library.Find("openblas_get_parallel", &parallel) ||
      !library.Find("openblas_get_config", &config) || !library.Find("openblas_set_num_threads", &set_threads)) {
    return;
  }
  if (std::strstr(config(), "USE64BITINT")) library.Refuse("a build with 32-bit integers is wanted (LP64)");
  // Serial builds may have no locks: two threads in one at a time then compute wrong sums. OpenMP's threads are
  // the host's.
  if (parallel() != kPthreads) library.Refuse("a build for pthreads is wanted (Debian's libopenblas0-pthread)");
  if (!library.why()) set_threads(1);
}
const char* Open(const char* path) { return OpenLibrary<&Bind>("openblas", path); }

int32_t Launch(const lz_kernel_args* args) {
  using namespace lz::ops::mlp_linear;
  const lz_tensor &weight = args->tensors[kWeight], &bias = args->tensors[kBias];
  const int64_t n = weight.shape[0], k = weight.shape[1], rows = NumRows(args->tensors[kOutput]);
  if (rows == 0) return 0;
  const float* x = Data<const float>(args->tensors[kInput]);
  gemm::ForColumns(args, rows, n, k, [&](int64_t first, int64_t columns) {
    float* out = Data<float>(args->tensors[kOutput]) + first;
    if (Given(bias)) {
      for (int64_t row = 0; row < rows; ++row)
        std::memcpy(out + row * n, Data<const float>(bias) + first, size_t(columns) * sizeof(float));
    }
    const int depth = int(std::max<int64_t>(1, k));
    g_sgemm(kRowMajor, kNoTranspose, kTranspose, int(rows), int(columns), int(k), 1.0f, x, depth,
            Data<const float>(weight) + first * k, depth, Given(bias) ? 1.0f : 0.0f, out, int(n));
  });
  return 0;
}

constexpr int64_t kMaxSize = std::numeric_limits<int>::max();
constexpr auto kConstraints =
    std::to_array<Constraint>({{"rows", Rel::kLe, kMaxSize}, {"n", Rel::kLe, kMaxSize}, {"k", Rel::kLe, kMaxSize}});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "openblas.mlp.linear",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kF32),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .priority = kLibraryPriority,
     .launch = &Launch,
     .open = &Open},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
