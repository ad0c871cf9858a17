// Runs an AOTInductor package whose model calls torch.ops.layerzero.*, without Python: LayerZero's operators are
// registered by liblayerzero_torch.so, before the package is loaded.
//   aoti_example <liblayerzero_torch.so> <package.pt2> <rows> <columns>
// Prints the sum of the first output for an input of ones, and the seconds of a call.
#include <ATen/ops/ones.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

bool RegisterOperators(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (!handle) return std::fprintf(stderr, "%s\n", dlerror()), false;
  using Register = const char* (*)();
  const auto run = reinterpret_cast<Register>(dlsym(handle, "layerzero_torch_register"));
  const char* const problem = run ? run() : "the library has no layerzero_torch_register";
  if (problem) std::fprintf(stderr, "%s: %s\n", library, problem);
  return problem == nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s <liblayerzero_torch.so> <package.pt2> <rows> <columns>\n", argv[0]);
    return 2;
  }
  if (!RegisterOperators(argv[1])) return 1;
  try {
    const c10::InferenceMode no_gradients;
    torch::inductor::AOTIModelPackageLoader model(argv[2]);
    const at::Tensor input = at::ones({std::atoll(argv[3]), std::atoll(argv[4])});
    at::Tensor output = model.run({input}).at(0);  // the first call chooses kernels
    const auto begin = std::chrono::steady_clock::now();
    output = model.run({input}).at(0);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%.6f %.6f\n", output.sum().item<double>(), seconds.count());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
