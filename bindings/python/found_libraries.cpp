#include "found_libraries.h"

#include <Python.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/found_library.h"

namespace lz::python {
namespace {

// Below a folder of packages, in this order. An installed torch uses one of them, so no second copy is loaded.
constexpr std::array kInPackages = {
    "nvidia/cu13/lib/libcublasLt.so.13",
    "nvidia/cublas/lib/libcublasLt.so.12",
    "torch/lib/libcublasLt.so.13",
    "torch/lib/libcublasLt.so.12",
};
constexpr std::array kSystem = {"/usr/local/cuda/lib64/", "/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/",
                                "/usr/lib64/"};
constexpr std::array kNames = {"libcublasLt.so.13", "libcublasLt.so.12"};

// The full paths among Python's search paths: what is below the current folder is not taken.
std::vector<std::string> SearchPaths() {
  std::vector<std::string> found;
  PyObject* path = PySys_GetObject("path");  // borrowed
  if (!path || !PyList_Check(path)) return found;
  for (Py_ssize_t i = 0; i < PyList_Size(path); ++i) {
    PyObject* const folder = PyList_GetItem(path, i);  // borrowed
    const char* text = PyUnicode_Check(folder) ? PyUnicode_AsUTF8AndSize(folder, nullptr) : nullptr;
    if (!text) PyErr_Clear();
    if (text && *text == '/') found.emplace_back(text);
  }
  return found;
}

std::vector<std::string> OtherFolders() {
  std::vector<std::string> found;
  PyObject* const prefix = PySys_GetObject("prefix");  // borrowed
  if (const char* text = prefix && PyUnicode_Check(prefix) ? PyUnicode_AsUTF8AndSize(prefix, nullptr) : nullptr) {
    found.push_back(std::string(text) + "/lib/");
  }
  PyErr_Clear();
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): at the import
    return std::string(value ? value : "");
  };
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string home = variable(name); !home.empty()) found.push_back(home + "/lib64/");
  }
  std::istringstream paths(variable("LD_LIBRARY_PATH"));
  for (std::string folder; std::getline(paths, folder, ':');) found.push_back(folder + "/");
  for (const char* folder : kSystem) found.emplace_back(folder);
  std::erase_if(found, [](const std::string& folder) { return folder[0] != '/'; });
  return found;
}

bool Note(const std::string& file) {
  if (access(file.c_str(), R_OK) != 0) return false;
  SetFoundLibrary("cublaslt", file);
  return true;
}

}  // namespace

void NoteFoundLibraries() {
  const std::vector<std::string> folders = SearchPaths();
  for (const char* file : kInPackages) {
    for (const std::string& folder : folders) {
      if (Note(folder + "/" + file)) return;
    }
  }
  for (const std::string& folder : OtherFolders()) {
    for (const char* name : kNames) {
      if (Note(folder + name)) return;
    }
  }
}

}  // namespace lz::python
