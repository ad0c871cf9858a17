#include "base/library_file.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <cstdlib>

namespace lz {

std::string LibraryFile(const char* path) {
  void* const library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return {};
  std::string text;
  link_map* map = nullptr;
  struct stat file {};
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && stat(map->l_name, &file) == 0) {
    char* const real = realpath(map->l_name, nullptr);
    const std::string name = real ? real : map->l_name;
    std::free(real);
    text = name.substr(name.rfind('/') + 1) + " of " + std::to_string(file.st_size) + " bytes";
  }
  dlclose(library);
  return text;
}

}  // namespace lz
