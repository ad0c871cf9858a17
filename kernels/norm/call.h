// The tensors and scalars that calls of all norms have, and the loop over their rows, CPU SIMD. Include only from files
// that Highway compiles per target.
#if defined(LZ_KERNELS_NORM_CALL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_NORM_CALL_H_
#undef LZ_KERNELS_NORM_CALL_H_
#else
#define LZ_KERNELS_NORM_CALL_H_
#endif

#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/rows.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {

template <class T>
struct NormCall {
  // The numbers of the tensors and scalars in the operation's contract.
  struct Places {
    int input, weight, output, eps, offset;
  };
  NormCall(const lz_kernel_args* args, const Places& at)
      : args(args),
        hidden(args->tensors[at.input].shape[args->tensors[at.input].ndim - 1]),
        x(RowsOf<const T>(args->tensors[at.input])),
        out(RowsOf<T>(args->tensors[at.output])),
        weight(Optional(at.weight)),
        rows(NumRows(args->tensors[at.input])),
        eps(float(args->scalars[at.eps].value.f)),
        offset(float(args->scalars[at.offset].value.f)) {}

  const T* Optional(int tensor) const {
    return Given(args->tensors[tensor]) ? Data<const T>(args->tensors[tensor]) : nullptr;
  }
  // Calls body(x, out, number) for each row. 16k elements take 2 to 4 us on one core: less does not pay for waking
  // another thread.
  template <class Body>
  int32_t ForRows(const Body& body) const {
    ParallelFor(args, rows, 16384 / (hidden + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) body(x.data + x.offsets[r], out.data + out.offsets[r], r);
    });
    return 0;
  }

  const lz_kernel_args* args;
  int64_t hidden;
  Rows<const T> x;
  Rows<T> out;
  const T* weight;  // null: 1
  int64_t rows;
  float eps, offset;
};

}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
