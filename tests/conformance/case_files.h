// The case files of the tree: tests/ops/<path>.cases holds the calls of the contract in ops/<path>.h.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "test_paths.h"
#include "tests/kernels/libraries.h"  // names them: their kernels are run too
#include "verify/case.h"

namespace lz::verify {

struct CaseLine {
  std::string file;  // relative to the source tree
  int line = 0;
  std::string text;
  std::string Where() const { return file + ":" + std::to_string(line) + ": " + text; }
  bool refuses() const { return text.starts_with("refuse "); }
};

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The flat name that the contract of a header states.
inline std::string ContractName(const std::string& header) {
  const size_t contract = header.find("Contract kContract");
  const size_t at = contract == header.npos ? contract : header.find(".name = \"", contract);
  if (at == header.npos) return {};
  return header.substr(at + 9, header.find('"', at + 9) - at - 9);
}

// Flat name of an operation -> its cases.
inline const std::map<std::string, std::vector<CaseLine>>& AllCases() {
  static const auto all = [] {
    std::map<std::string, std::vector<CaseLine>> cases;
    const std::filesystem::path root = LZ_SOURCE_DIR, folder = root / "tests/ops";
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == ".cases") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      auto header = root / "ops" / std::filesystem::relative(file, folder);
      auto& lines = cases[ContractName(ReadFile(header.replace_extension(".h")))];
      std::istringstream text(ReadFile(file));
      std::string line;
      for (int number = 1; std::getline(text, line); ++number) {
        if (line.find_first_not_of(" \t") == line.npos || line.front() == '#') continue;
        lines.push_back({std::filesystem::relative(file, root).string(), number, line});
      }
    }
    return cases;
  }();
  return all;
}

inline const std::vector<CaseLine>& CasesOf(const Operation& op) {
  static const std::vector<CaseLine> none;
  const auto at = AllCases().find(std::string(op.name()));
  return at == AllCases().end() ? none : at->second;
}

inline std::vector<const KernelEntry*> NativeKernels(Engine& engine) {
  std::vector<const KernelEntry*> kernels;
  for (const KernelEntry* k : engine.selector().registry().Kernels(nullptr)) {
    if (k->spec.call == CallKind::kNative && k->spec.launch) kernels.push_back(k);
  }
  return kernels;
}

}  // namespace lz::verify
