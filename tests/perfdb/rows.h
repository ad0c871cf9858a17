// Records, folders and processes for the tests of the performance database.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "perfdb/database.h"

namespace lz::perfdb {

inline Record Row(int64_t rows, double us = 10, const std::string& kernel = "hwy.norm.rms") {
  Record r;
  r.kernel_id = kernel;
  r.operation = "norm.rms";
  r.device_id = "a CPU, AVX-512, L1d 48 KiB, 2 cores";
  r.dtype = "float32";
  r.axes = {{"...", rows}, {"hidden", 64}};
  r.options = {{"weight", "given"}};
  r.median_us = us;
  r.p95_us = us * 2;
  r.low_us = us * 0.9;
  r.high_us = us * 1.1;
  r.samples = 20;
  r.variance_us = 0.25;
  r.kernel_version = "1";
  r.layerzero_version = "0.1.0";
  r.build_id = "tests";
  r.backend = "hwy";
  r.torch_version = "2.13.0";
  r.measured_at = "2026-01-31T12:00:00Z";
  return r;
}

inline std::vector<Record> Rows(int count) {
  std::vector<Record> rows;
  for (int i = 0; i < count; ++i) rows.push_back(Row(i + 1, 10 + i));
  return rows;
}

// A folder of this test alone.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "lz-perfdb-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, error);
    std::filesystem::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A child that runs `work` and ends; its exit status is 0 if `work` returned true.
inline pid_t Child(const std::function<bool()>& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work() ? 0 : 1);
  return child;
}
inline bool EndedWell(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace lz::perfdb
