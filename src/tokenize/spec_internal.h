// Reading a tokenizer.json: what spec.cpp and spec_parts.cpp share.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tokenize/spec.h"

namespace lz::tokenize {

using nlohmann::json;

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";

inline Status Unsupported(std::string field, std::string wanted, std::string got) {
  return {StatusCode::kConfig,
          {"tokenizer: " + std::move(field), std::move(wanted), std::move(got), "use the tokenizer's own library"}};
}

// Members of an object: one that is absent or null has its default, and one of another type is an error, which is kept.
class Object {
 public:
  Object(const json& value, std::string field) : value_(value), field_(std::move(field)) {
    if (!value_.is_object()) status_ = Unsupported(field_, "an object", value_.is_null() ? "null" : value_.type_name());
  }
  const json* Find(std::string_view name) const {
    if (!value_.is_object()) return nullptr;
    const auto found = value_.find(name);
    return found == value_.end() || found->is_null() ? nullptr : &*found;
  }
  bool Bool(std::string_view name, bool absent) {
    const json* found = Find(name);
    if (!found) return absent;
    if (found->is_boolean()) return found->get<bool>();
    return Fail(name, "true or false"), absent;
  }
  std::string Text(std::string_view name, std::string absent = {}) {
    const json* found = Find(name);
    if (!found) return absent;
    if (found->is_string()) return found->get<std::string>();
    return Fail(name, "a text"), absent;
  }
  int32_t Id(std::string_view name) {
    const json* found = Find(name);
    if (found && found->is_number_integer() && found->get<int64_t>() >= 0 && found->get<int64_t>() < kMostIds) {
      return found->get<int32_t>();
    }
    return Fail(name, "an id"), -1;
  }
  // Refuses members that change what is computed and are not known here.
  void Only(std::initializer_list<std::string_view> names) {
    if (!value_.is_object()) return;
    for (const auto& [name, value] : value_.items()) {
      bool known = false;
      for (std::string_view one : names) known |= one == name;
      if (!known) Fail(name, "no such key");
    }
  }
  void Fail(std::string_view name, std::string wanted) {
    if (!status_.ok()) return;
    const json* found = Find(name);
    status_ = Unsupported(field_ + "." + std::string(name), std::move(wanted),
                          found ? found->dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 200) : "none");
  }
  Status TakeStatus() { return std::move(status_); }
  bool ok() const { return status_.ok(); }

  static constexpr int64_t kMostIds = int64_t{1} << 24;

 private:
  const json& value_;
  std::string field_;
  Status status_;
};

Status ReadNormalizer(const json& value, Spec* spec);
Status ReadPreTokenizer(const json& value, Spec* spec);
Status ReadPostProcessor(const json& value, Spec* spec);
Status ReadDecoder(const json& value, Spec* spec);

}  // namespace lz::tokenize
