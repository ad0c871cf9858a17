#include "table/file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/trusted_file.h"

namespace lz::table {

Result<std::shared_ptr<const File>> File::Open(const std::string& path) {
  auto opened = TrustedFile::Open(path);
  if (!opened.ok()) return opened.TakeStatus();
  struct stat info = {};
  void* memory = MAP_FAILED;
  if (opened->fd() >= 0 && fstat(opened->fd(), &info) == 0 && info.st_size > 0) {
    memory = mmap(nullptr, size_t(info.st_size), PROT_READ, MAP_PRIVATE | MAP_POPULATE, opened->fd(), 0);
  }
  if (memory == MAP_FAILED) {
    const char* const why = opened->fd() >= 0 && info.st_size == 0 ? "an empty file" : std::strerror(errno);
    return Status(StatusCode::kNotInstalled,
                  {.field = path, .wanted = "a readable dispatch table", .got = why, .fix = "check the path"});
  }
  std::shared_ptr<File> file(new File(path, {static_cast<const char*>(memory), size_t(info.st_size)}));
  auto view = View::Open(file->bytes_, path);
  if (!view.ok()) return view.TakeStatus();
  file->view_ = *view;
  return std::shared_ptr<const File>(std::move(file));
}

File::~File() { munmap(const_cast<char*>(bytes_.data()), bytes_.size()); }

}  // namespace lz::table
