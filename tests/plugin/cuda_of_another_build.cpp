// What a CUDA library of another build may look like: another build id, another function by the same name.
#include <cstdlib>

#define EXPORT __attribute__((visibility("default")))

extern "C" {
extern EXPORT const char lz_cuda_build_id[];
const char lz_cuda_build_id[] = "0.0.0+another";
EXPORT void lz_cuda_rows() { std::abort(); }
}
