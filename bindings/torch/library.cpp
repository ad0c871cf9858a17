// Registration of torch.ops.layerzero.* when the library is loaded: one operator for each contract of the engine, and
// one more where an output is conditional. Python adds fakes and gradients (layerzero/torch/operators.py).
#include <dlfcn.h>
#include <torch/csrc/stable/library.h>

#include <array>
#include <cstring>
#include <utility>

#include "aten.h"
#include "build_id.h"
#include "call.h"

namespace lz::torch_ops {
namespace {

constexpr size_t kMaxTorchOps = 128;

const std::vector<TorchOp>& Table() {
  static const auto* table = new std::vector<TorchOp>(TorchOps(Engine::Get()));
  return *table;
}

// torch's kernels are plain functions without state: one for each index of the table.
// Runs the call. Returns its error in the thread's memory, or nullptr.
[[gnu::noinline]] const char* Run(size_t i, StableIValue* stack) noexcept {
  static thread_local std::string error;
  try {
    CallBoxed(Table()[i], i, stack);
    return nullptr;
  } catch (const std::exception& thrown) {
    error = thrown.what();
    return error.c_str();
  }
}

// Torch throws, not this library, whose C++ runtime may be another one (the portable wheel's): no exception of ours
// crosses torch's frames, and no frame of ours that torch's passes has anything to clean up.
template <size_t I>
void Boxed(StableIValue* stack, uint64_t, uint64_t) {
  if (const char* const error = Run(I, stack)) aoti_torch_check(false, "layerzero", "layerzero", 0, error);
}
using BoxedFn = void (*)(StableIValue*, uint64_t, uint64_t);
constexpr auto kBoxed = []<size_t... I>(std::index_sequence<I...>) {
  return std::array<BoxedFn, sizeof...(I)>{&Boxed<I>...};
}
(std::make_index_sequence<kMaxTorchOps>());

const char* Problem() {
  if (std::strcmp(Engine::BuildId(), LZ_BUILD_ID) != 0) {
    return "liblayerzero_torch.so and liblayerzero.so are of different builds; install one wheel";
  }
  return Table().size() > kMaxTorchOps ? "more operations than the torch library can register" : nullptr;
}

// Tags came to the C interface with torch 2.12; without them torch assumes the same of an operator.
void Define(TorchLibraryHandle library, const std::string& schema) {
  using Tag = int32_t (*)();
  using DefineTagged = AOTITorchError (*)(TorchLibraryHandle, const char*, const int32_t*, int32_t);
  static void* const cpu = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  static const auto tagged = reinterpret_cast<DefineTagged>(cpu ? dlsym(cpu, "torch_library_def_with_tags") : nullptr);
  static const auto order = reinterpret_cast<Tag>(cpu ? dlsym(cpu, "torch_tag_needs_fixed_stride_order") : nullptr);
  static const auto compliant = reinterpret_cast<Tag>(cpu ? dlsym(cpu, "torch_tag_pt2_compliant_tag") : nullptr);
  if (tagged && order && compliant) {
    const int32_t tags[] = {order(), compliant()};
    STABLE_TORCH_ERROR_CODE_CHECK(tagged(library, schema.c_str(), tags, 2));
  } else {
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_library_def(library, schema.c_str()));
  }
}

void DefineAll() {
  // Never deleted: operators live as long as the process.
  TorchLibraryHandle library = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_library_init_def("layerzero", "layerzero/library.cpp", 1, &library));
  for (const TorchOp& t : Table()) Define(library, t.Schema());
  for (const char* key : {"CPU", "CUDA"}) {
    auto* kernels = new ::torch::stable::detail::StableLibrary(::torch::stable::detail::StableLibrary::Kind::IMPL,
                                                               "layerzero", key, "layerzero/library.cpp", 1);
    for (size_t i = 0; i < Table().size(); ++i) kernels->impl(Table()[i].Name().c_str(), kBoxed[i]);
  }
}

}  // namespace
}  // namespace lz::torch_ops

// Registers the operators; a second call does nothing. Why it cannot: the text; nullptr: done. Called by the Python
// side after the load, because an exception during the load would end the process.
extern "C" LZ_OWN const char* layerzero_torch_register() {
  static const char* const problem = []() -> const char* {
    if (const char* text = lz::torch_ops::Problem()) return text;
    try {
      lz::torch_ops::DefineAll();
    } catch (const std::exception& error) {
      return (new std::string(error.what()))->c_str();
    }
    return nullptr;
  }();
  return problem;
}

// Returns the engine's error of the calling thread's last RuntimeError, once; nullptr: it was another error.
extern "C" LZ_OWN const lz::torch_ops::LastError* layerzero_torch_last_error() {
  return lz::torch_ops::TakeLastError();
}
