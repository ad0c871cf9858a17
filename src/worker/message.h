// Messages between a process and a worker, as bytes in the memory that they share (docs/design/0031-isolation.md). A
// message has numbers, texts, and tensors as (dtype, shape, strides, place); every read of one is checked. The first
// byte is the kind. Messages of the kinds kLoad, kReady, kLoaded and kError are JSON after it, which Python code reads.
//
// The shared memory, in order: the words (doorbell.h), the request, the response, and from kDataAt on the tensors.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/export.h"
#include "core/limits.h"
#include "core/status.h"
#include "layerzero/c_abi.h"

namespace lz::worker {

inline constexpr size_t kMaxMessage = 64 * 1024;  // bytes
inline constexpr size_t kMaxArguments = 64;       // and results
inline constexpr size_t kMaxText = 8 * 1024;      // bytes of one text
inline constexpr size_t kMaxHandle = 4 * 1024;    // bytes that identify the memory of a device
inline constexpr uint64_t kRequestAt = 4096;      // where each message is, after its length in 4 bytes
inline constexpr uint64_t kResponseAt = kRequestAt + kMaxMessage + 4096;
inline constexpr uint64_t kDataAt = 256 * 1024;
inline constexpr uint64_t kAlignment = 64;  // of a tensor, bytes

constexpr uint64_t Aligned(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

enum class Kind : uint8_t {
  kLoad = 1,     // JSON: import adapters, and run the probe
  kCall = 2,     // Call
  kRoom = 3,     // Room: place and bytes for the outputs
  kReady = 16,   // JSON: the worker's versions
  kLoaded = 17,  // JSON: the error of what kLoad asked for, or ""
  kNeed = 18,    // the bytes that the outputs of the running call take
  kResult = 19,  // Answer
  kError = 20,   // JSON
};

// A tensor without its data: `offset` in bytes from the begin of the shared memory, or of a device's memory.
struct Place {
  lz_dtype dtype{};
  int32_t ndim = 0;
  int64_t shape[kMaxRank] = {}, strides[kMaxRank] = {};  // not negative
  uint64_t offset = 0;

  bool operator==(const Place& other) const;
};

// An argument or a result.
struct Value {
  enum class Tag : uint8_t { kNone, kInt, kFloat, kBool, kText, kHost, kDevice };

  Tag tag = Tag::kNone;
  int64_t integer = 0;    // kInt, kBool
  double real = 0;        // kFloat
  std::string_view text;  // kText; of kDevice the handle of its memory
  Place place;            // kHost, kDevice
};

struct Room {
  uint64_t offset = 0, bytes = 0;
};

struct Call {
  uint16_t function = 0;  // its number in the worker
  uint16_t threads = 0;   // torch's
  Room room;              // for outputs
  std::vector<Value> arguments;
};

struct Answer {
  bool is_tuple = false;
  std::string_view warnings;   // JSON, or empty
  std::vector<Value> results;  // kNone, kHost or kDevice
};

// Writes a message into memory for kMaxMessage bytes.
class LZ_OWN Writer {
 public:
  explicit Writer(char* memory) : begin_(memory), at_(memory) {}
  // kWrongType: the message cannot have it, and says why.
  Status Put(const Call& call);
  Status Put(const Answer& answer);
  Status PutRoom(const Room& room);
  Status PutNeed(uint64_t bytes);
  size_t size() const { return size_t(at_ - begin_); }

 private:
  Status PutValues(std::span<const Value> values);
  Status PutValue(const Value& value);
  Status PutBytes(std::string_view bytes, size_t most, const char* what);
  template <class T>
  void Number(T number) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    if (size() + sizeof(T) <= kMaxMessage) std::memcpy(at_, &number, sizeof(T));
    at_ += sizeof(T);  // past the end: Finish reports it
  }
  Status Finish() const;

  char *begin_, *at_;
};

// Read a message of the kind; its texts are views into it. kInvalidRequest: it breaks the protocol.
LZ_OWN Status Read(std::string_view message, Call* call);
LZ_OWN Status Read(std::string_view message, Answer* answer);
LZ_OWN Status Read(std::string_view message, Room* room);
LZ_OWN Status ReadNeed(std::string_view message, uint64_t* bytes);

// The bytes from the first to the last element of a tensor in shared memory that is within [begin, end), or
// kInvalidRequest. 0: it has no elements.
LZ_OWN Result<uint64_t> BytesWithin(const Place& place, uint64_t begin, uint64_t end);

// Sets strides of the same order of axes without gaps or overlap: those of a dense tensor are unchanged, one with a
// repeated axis becomes row-major.
LZ_OWN void SetDenseStrides(const lz_tensor& tensor, int64_t* strides);

}  // namespace lz::worker
