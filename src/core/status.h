// Status and Result<T>: how the engine reports that a call cannot be served. Nothing in the engine throws.
//   LZ_RETURN_IF_ERROR(Bind(...));
//   return Status(StatusCode::kInvalidRequest, {.field = "query", .wanted = "rank 4", .got = "rank 3", .fix = "..."});
// A kernel that cannot serve a request is not an error: see reason.h.
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "layerzero/c_abi.h"

namespace lz {

enum class StatusCode : int32_t {
  kOk = LZ_OK,
  kInvalidRequest = LZ_INVALID_REQUEST,
  kWrongType = LZ_WRONG_TYPE,
  kNoKernel = LZ_NO_KERNEL,
  kUnknownName = LZ_UNKNOWN_NAME,
  kConfig = LZ_CONFIG,
  kNotInstalled = LZ_NOT_INSTALLED,
  kKernelFailed = LZ_KERNEL_FAILED,
  kVersionMismatch = LZ_VERSION_MISMATCH,
  kGraphUnsafe = LZ_GRAPH_UNSAFE,
  kHostKernel = LZ_HOST_KERNEL,
  kInternal = LZ_INTERNAL,
  kCacheFull = LZ_CACHE_FULL,
  kKernelRefused = LZ_KERNEL_REFUSED,
  kContextLost = LZ_CONTEXT_LOST,
  kOutOfMemory = LZ_OUT_OF_MEMORY,
  kUntrustedFile = LZ_UNTRUSTED_FILE,
};

// What was wanted, what was got, what to do. Every part is a phrase; Text() makes the sentence.
struct ErrorParts {
  std::string field;
  std::string wanted;
  std::string got;
  std::string fix;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, ErrorParts parts) : detail_(new Detail{code, std::move(parts)}) {}

  bool ok() const { return detail_ == nullptr; }
  StatusCode code() const { return detail_ ? detail_->code : StatusCode::kOk; }
  const ErrorParts& parts() const {
    assert(!ok());
    return detail_->parts;
  }
  std::string Text() const {
    if (ok()) return "ok";
    const ErrorParts& p = detail_->parts;
    std::string text = p.field;
    if (!p.wanted.empty()) text += (text.empty() ? "wanted " : ": wanted ") + p.wanted;
    if (!p.got.empty()) text += (text.empty() ? "got " : ", got ") + p.got;
    if (!p.fix.empty()) text += (text.empty() ? "" : "; ") + p.fix;
    return text;
  }

 private:
  struct Detail {
    StatusCode code;
    ErrorParts parts;
  };
  std::unique_ptr<Detail> detail_;
};

// A T, or the Status that explains why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                  // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  Status TakeStatus() { return std::move(status_); }
  T& value() {
    assert(ok());
    return *value_;
  }
  const T& value() const {
    assert(ok());
    return *value_;
  }
  T& operator*() { return value(); }
  T* operator->() { return &value(); }
  const T& operator*() const { return value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

#define LZ_RETURN_IF_ERROR(expression)       \
  do {                                       \
    ::lz::Status lz_status_ = (expression);  \
    if (!lz_status_.ok()) return lz_status_; \
  } while (0)

}  // namespace lz
