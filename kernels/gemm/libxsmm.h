// The part of libxsmm 1.17 that is used; it compiles a function for each small product. Named by the user:
// LAYERZERO_LIBRARIES="libxsmm=/opt/lib/libxsmm.so". Compiled functions stay for the life of the process, one per
// Product; any number of threads may request one.
#pragma once

#include <cstdint>

#include "kernels/library.h"

namespace lz::libxsmm {

// out [rows, columns] = or += x [rows, k] * w [k, columns], all row-major; ld_x, ld_w and ld_out are the distances of
// rows in elements.
struct Product {
  int rows, columns, k;
  int ld_x, ld_w, ld_out;
  bool add;  // add to the values of `out`
};

// libxsmm's matrices are column-major: ours are their transposes, with the second operand first.
using Function = void(const void* w, const void* x, void* out);
using Dispatch = Function*(int m, int n, int k, const int* lda, const int* ldb, const int* ldc, const float* alpha,
                           const float* beta, const int* flags, const int* prefetch);
inline Dispatch* g_dispatch_f32 = nullptr;
inline Dispatch* g_dispatch_bf16 = nullptr;

inline bool Run(Dispatch* dispatch, int flags, const Product& p, const void* x, const void* w, void* out) {
  const float alpha = 1, beta = p.add ? 1 : 0;
  const int no_prefetch = 0;
  Function* f = dispatch(p.columns, p.rows, p.k, &p.ld_w, &p.ld_x, &p.ld_out, &alpha, &beta, &flags, &no_prefetch);
  if (f) f(w, x, out);
  return f != nullptr;
}

// False if libxsmm does not compile such a function.
inline bool Multiply(const Product& p, const float* x, const float* w, float* out) {
  return Run(g_dispatch_f32, 0, p, x, w, out);
}
// bf16; k is even, w in pairs: [k / 2, columns, 2].
inline bool Multiply(const Product& p, const uint16_t* x, const uint16_t* w, uint16_t* out) {
  constexpr int kPairs = 32768;
  return Run(g_dispatch_bf16, kPairs, p, x, w, out);
}

inline void Bind(Library& library) {
  void (*init)() = nullptr;
  if (!library.Find("libxsmm_init", &init) || !library.Find("libxsmm_smmdispatch", &g_dispatch_f32) ||
      !library.Find("libxsmm_bmmdispatch", &g_dispatch_bf16)) {
    return;
  }
  init();
  const float x[] = {1, 2}, w[] = {3, 4, 5, 6};
  float out[] = {7, 8};
  if (!Multiply({.rows = 1, .columns = 2, .k = 2, .ld_x = 2, .ld_w = 2, .ld_out = 2, .add = true}, x, w, out)) {
    return library.Refuse("it compiles nothing for this CPU");
  }
  if (out[0] != 20 || out[1] != 24) library.Refuse("libxsmm 1.17 is wanted, this one multiplies otherwise");
}
inline const char* Open(const char* path) { return OpenLibrary<&Bind>("libxsmm", path); }

}  // namespace lz::libxsmm
