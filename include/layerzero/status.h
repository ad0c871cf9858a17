// The results of calls from C++: Status, or Result<T>, which is a value or the Status that explains why there is none.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "layerzero/c_abi.h"

namespace layerzero {

// Success, or what was wanted, what was got and what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(lz_status_code code, std::string field, std::string wanted, std::string got = {}, std::string fix = {})
      : code_(code), field_(std::move(field)), wanted_(std::move(wanted)), got_(std::move(got)), fix_(std::move(fix)) {
    text_ = field_ + ": wanted " + wanted_ + (got_.empty() ? "" : ", got " + got_) + (fix_.empty() ? "" : "; " + fix_);
  }
  explicit Status(const lz_error& e)
      : code_(lz_status_code(e.code)), field_(e.field), wanted_(e.wanted), got_(e.got), fix_(e.fix), text_(e.text) {}

  bool ok() const { return code_ == LZ_OK; }
  lz_status_code code() const { return code_; }
  const std::string& field() const { return field_; }
  const std::string& wanted() const { return wanted_; }
  const std::string& got() const { return got_; }
  const std::string& fix() const { return fix_; }
  const std::string& text() const { return text_; }  // the whole error in one sentence

 private:
  lz_status_code code_ = LZ_OK;
  std::string field_, wanted_, got_, fix_, text_ = "ok";
};

// A T, or the Status that explains why there is none. Check ok() first.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : value_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return std::holds_alternative<T>(value_); }
  Status status() const { return ok() ? Status() : *std::get_if<Status>(&value_); }
  T& operator*() { return *std::get_if<T>(&value_); }
  const T& operator*() const { return *std::get_if<T>(&value_); }
  T* operator->() { return std::get_if<T>(&value_); }
  const T* operator->() const { return std::get_if<T>(&value_); }

 private:
  std::variant<T, Status> value_;
};

}  // namespace layerzero
