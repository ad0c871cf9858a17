// The bounded JSON reader: a SAX handler that builds the document and stops at the first violation.
#include "base/json_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lz {
namespace {

using nlohmann::json;

class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return Add(value) != nullptr; }
  bool string(string_t& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return Fail("no binary value", "one"); }

  bool start_object(size_t) override { return Open(json::object()); }
  bool start_array(size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    const auto [slot, is_new] = open_.back()->emplace(std::move(name), nullptr);
    if (!is_new) return Fail("each key once", "\"" + slot.key() + "\" twice");
    slot_ = &*slot;
    return true;
  }
  bool parse_error(size_t position, const std::string& token, const json::exception&) override {
    position_ = position;
    if (wanted_.empty()) Fail("JSON", token.empty() ? "an unfinished text" : "'" + token + "'");
    return false;
  }

  json&& Take() { return std::move(root_); }
  const std::string& wanted() const { return wanted_; }
  const std::string& got() const { return got_; }
  size_t position() const { return position_; }

 private:
  template <class T>
  json* Add(T&& value) {
    if (++num_values_ > limits_.max_values) {
      Fail("at most " + std::to_string(limits_.max_values) + " values", "more");
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::forward<T>(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::forward<T>(value));
      return &parent.back();
    }
    *slot_ = std::forward<T>(value);
    return slot_;
  }
  // The address stays valid while the container is open: its siblings are added to another container only.
  bool Open(json container) {
    if (int(open_.size()) >= limits_.max_depth) {
      return Fail("at most " + std::to_string(limits_.max_depth) + " levels", "more");
    }
    json* added = Add(std::move(container));
    if (!added) return false;
    open_.push_back(added);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Fail(std::string wanted, std::string got) {
    wanted_ = std::move(wanted);
    got_ = std::move(got);
    return false;
  }

  const JsonLimits& limits_;
  json root_;
  std::vector<json*> open_;
  json* slot_ = nullptr;  // of the last key
  size_t num_values_ = 0;
  size_t position_ = 0;  // 0: unknown
  std::string wanted_, got_;
};

}  // namespace

Result<json> ReadJson(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return Status(StatusCode::kConfig, {.field = limits.what,
                                        .wanted = "at most " + std::to_string(limits.max_bytes) + " bytes",
                                        .got = std::to_string(text.size())});
  }
  Builder builder(limits);
  if (json::sax_parse(text.begin(), text.end(), &builder)) return Result<json>(builder.Take());
  std::string field = limits.what;
  if (builder.position() > 0) {
    const size_t end = std::min(builder.position(), text.size());
    field += ":" + std::to_string(1 + std::count(text.begin(), text.begin() + ptrdiff_t(end), '\n'));
  }
  return Status(StatusCode::kConfig, {.field = field, .wanted = builder.wanted(), .got = builder.got()});
}

std::string JsonText(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  // With the replacing handler, invalid UTF-8 never throws.
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  constexpr size_t kLongest = 60;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace lz
