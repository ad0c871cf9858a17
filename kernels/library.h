// C libraries that kernels call, named by the user in LAYERZERO_LIBRARIES. A library that is not named is not opened,
// because opening one may start threads (an exception: gemm/cublaslt.h). It stays open.
//   void Bind(Library& library) { library.Find("cblas_sgemm", &g_sgemm); }  // in the file's own namespace
//   const char* Open(const char* path) { return OpenLibrary<&Bind>("openblas", path); }  // KernelSpec::open
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <string>
#include <utility>

namespace lz {

// Below torch's kernels: naming a library makes it a candidate; measurements or preferences select it.
inline constexpr int32_t kLibraryPriority = 8;

class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_) return;
    const char* why = dlerror();
    Refuse(why ? why : std::string(path) + " does not load");
  }

  // Finds the function of this name, in the library or one that it depends on; if there is none, returns false and
  // refuses the library.
  template <class T>
  bool Find(const char* name, T** to) {
    if (why()) return false;
    *to = reinterpret_cast<T*>(dlsym(handle_, name));
    if (!*to) Refuse(std::string("the library has no ") + name);
    return *to != nullptr;
  }
  // Finds the function that the library's own calls are bound to: the process's comes before those of its dependencies.
  template <class T>
  bool FindBound(const char* name, T** to) {
    *to = reinterpret_cast<T*>(dlsym(RTLD_DEFAULT, name));
    return *to || Find(name, to);
  }
  void Refuse(std::string why) {
    if (why_.empty()) why_ = std::move(why);
  }

  const char* why() const { return why_.empty() ? nullptr : why_.c_str(); }  // why it cannot be used; null if it can

 private:
  void* handle_;
  std::string why_;
};

// Opens the library of one source, once per kBind, which finds its functions; returns why it cannot be used, or null.
// The first path of the process counts.
template <void (*kBind)(Library&)>
const char* OpenLibrary(const char* source, const char* path) {
  static const std::string unnamed = std::string("LAYERZERO_LIBRARIES=") + source + "=<path or soname> names it";
  if (!path) return unnamed.c_str();
  static const Library& library = *[&] {
    auto* opened = new Library(path);  // never closed: kernels use its functions
    if (!opened->why()) kBind(*opened);
    return opened;
  }();
  return library.why();
}

}  // namespace lz
