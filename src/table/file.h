// A table's file, mapped into memory and checked.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "table/view.h"

namespace lz::table {

class File {
 public:
  // kUntrustedFile: another user can change the file; kNotInstalled: it cannot be read; kConfig: as View::Open. Writers
  // replace the file (`layerzero solve` does), because a file that shrinks while it is mapped ends the process.
  static Result<std::shared_ptr<const File>> Open(const std::string& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const View& view() const { return *view_; }
  const std::string& path() const { return path_; }
  std::string_view bytes() const { return bytes_; }

 private:
  File(std::string path, std::string_view bytes) : path_(std::move(path)), bytes_(bytes) {}
  std::string path_;
  std::string_view bytes_;
  std::optional<View> view_;
};

}  // namespace lz::table
