#include "base/found_library.h"

#include <map>
#include <mutex>
#include <utility>

namespace lz {
namespace {

struct Found {
  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> files;
};
Found& OfProcess() {
  static auto& found = *new Found;
  return found;
}

}  // namespace

void SetFoundLibrary(std::string source, std::string path) {
  Found& found = OfProcess();
  std::lock_guard lock(found.mutex);
  found.files[std::move(source)] = std::move(path);
}

std::string FoundLibrary(std::string_view source) {
  Found& found = OfProcess();
  std::lock_guard lock(found.mutex);
  const auto at = found.files.find(source);
  return at == found.files.end() ? std::string() : at->second;
}

}  // namespace lz
