// JSON from outside the process: bounded in size and depth, duplicate keys refused; errors have the line.
//   Result<nlohmann::json> doc = ReadJson(text, {.what = "devices/h100.json"});
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/status.h"

namespace lz {

struct JsonLimits {
  std::string what;  // the file's name in messages
  size_t max_bytes = size_t{1} << 20;
  int max_depth = 16;
  size_t max_values = 100000;
};

// Throws nothing. Errors are kConfig with the field "<what>:<line>".
Result<nlohmann::json> ReadJson(std::string_view text, const JsonLimits& limits);

// A short rendering of a value for messages ("\"abc\"", "an object", "12").
std::string JsonText(const nlohmann::json& value);

}  // namespace lz
