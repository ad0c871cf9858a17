// A plugin library with one fault, chosen by FAULT, for the loader's tests.
#include "layerzero/c_abi.h"

#define NO_SYMBOL 1
#define NEXT_MAJOR 2
#define SHORT_TABLE 3
#define SHORT_ROW 4
#define NO_LAUNCH 5
#define OTHER_ID 6
#define NULL_TABLE 7
#define TWICE 8
#define WRONG_RESULT 9  // writes nothing

namespace {

[[maybe_unused]] int32_t Launch(const lz_kernel_args*) { return 0; }

const lz_plugin_kernel kKernels[] = {
    {FAULT == SHORT_ROW ? uint32_t{8} : uint32_t{sizeof(lz_plugin_kernel)}, 1,
     FAULT == OTHER_ID ? "example.norm.other" : "example.norm.rms", "norm.rms", FAULT == NO_LAUNCH ? nullptr : &Launch,
     nullptr},
    {sizeof(lz_plugin_kernel), 1, "example.norm.rms", "norm.rms", &Launch, nullptr},
};
const lz_plugin kPlugin = {FAULT == SHORT_TABLE ? uint32_t{8} : uint32_t{sizeof(lz_plugin)},
                           LZ_ABI_MAJOR + (FAULT == NEXT_MAJOR),
                           "faulty",
                           "1.0",
                           kKernels,
                           FAULT == TWICE ? 2u : 1u};

}  // namespace

#if FAULT == NO_SYMBOL
#define lz_plugin_descriptor another_name
#endif
extern "C" __attribute__((visibility("default"))) const lz_plugin* lz_plugin_descriptor(void) {
  return FAULT == NULL_TABLE ? nullptr : &kPlugin;
}
