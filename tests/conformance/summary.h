// What a process of the conformance binary has run: printed at its end, and written to the file that
// LZ_CONFORMANCE_JSON names.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/conformance/case_files.h"

namespace lz::verify {

// A name as GoogleTest takes it for a parameter.
inline std::string TestName(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

inline std::vector<std::string> OperationNames() {
  std::vector<std::string> names;
  for (const auto& op : Engine::Get().operations()) names.emplace_back(op->name());
  return names;
}

struct Summary : testing::Environment {
  struct Kernel {
    size_t admitted = 0, copied = 0, failed = 0, refused = 0;
    double worst = 0;  // largest share of its bound
    double seconds = 0;
  };
  struct Random {
    size_t calls = 0;     // that bind
    size_t unbound = 0;   // no call found that does
    size_t launched = 0;  // kernel runs compared with the reference
    size_t broken = 0;    // drawn as invalid, refused
    size_t failed = 0;
  };
  std::map<std::string, Kernel> kernels;
  std::map<std::string, Random> random;  // by operation
  std::map<std::string, bool> planted;   // fault -> caught
  size_t pairs = 0, refusals = 0;

  static Summary& Get() {
    static Summary* const summary = static_cast<Summary*>(testing::AddGlobalTestEnvironment(new Summary));
    return *summary;
  }
  void TearDown() override {
    size_t cases = 0, used = 0, calls = 0, launched = 0, outside = 0, caught = 0;
    for (const auto& [name, lines] : AllCases()) cases += lines.size();
    nlohmann::json json;
    for (const auto& [name, k] : kernels) {
      used += k.admitted > 0;
      outside += k.failed;
      json["kernels"][name] = {{"pairs", k.admitted},  {"copied", k.copied},        {"failed", k.failed},
                               {"refused", k.refused}, {"worst_of_bound", k.worst}, {"seconds", k.seconds}};
    }
    for (const auto& [name, r] : random) {
      calls += r.calls + r.broken;
      launched += r.launched;
      outside += r.failed;
      json["random"][name] = {{"calls", r.calls},
                              {"not_found", r.unbound},
                              {"launched", r.launched},
                              {"broken", r.broken},
                              {"failed", r.failed}};
    }
    for (const auto& [name, found] : planted) caught += found;
    json["operations"] = OperationNames().size();
    json["pairs"] = pairs;
    json["cases"] = cases;
    json["refusals"] = refusals;
    json["random_calls"] = calls;
    json["random_launched"] = launched;
    json["outside_tolerance"] = outside;
    json["faults_planted"] = planted.size();
    json["faults_caught"] = caught;
    std::cout << OperationNames().size() << " operations, " << used << " kernels, " << cases << " cases (" << refusals
              << " refusals), " << pairs << " pairs, " << calls << " random calls (" << launched << " launches), "
              << outside << " outside tolerance, " << planted.size() << " faults planted, " << caught << " caught\n";
    if (const char* path = std::getenv("LZ_CONFORMANCE_JSON")) std::ofstream(path) << json.dump(1) << '\n';
  }
};

}  // namespace lz::verify
