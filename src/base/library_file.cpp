#include "base/library_file.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <cstdlib>

namespace lz {

namespace {

std::string Text(const char* path) {
  struct stat file {};
  if (stat(path, &file) != 0) return {};
  char* const real = realpath(path, nullptr);
  const std::string name = real ? real : path;
  std::free(real);
  return name.substr(name.rfind('/') + 1) + " of " + std::to_string(file.st_size) + " bytes";
}

}  // namespace

std::string LibraryFile(const char* path) {
  void* const library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return *path == '/' ? Text(path) : std::string();
  link_map* map = nullptr;
  std::string text = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? Text(map->l_name) : std::string();
  dlclose(library);
  return text;
}

}  // namespace lz
