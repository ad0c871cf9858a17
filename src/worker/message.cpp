#include "worker/message.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace lz::worker {
namespace {

Status Unsendable(std::string wanted, std::string got) {
  return Status(StatusCode::kWrongType, {.field = "a message", .wanted = std::move(wanted), .got = std::move(got)});
}
Status Broken(std::string wanted, std::string got) {
  return Status(StatusCode::kInvalidRequest,
                {.field = "a message", .wanted = std::move(wanted), .got = std::move(got)});
}

// Reads fields; the first one that is not there makes all others zero.
class Reader {
 public:
  explicit Reader(std::string_view message) : left_(message) {}

  template <class T>
  T Number() {
    T number{};
    if (left_.size() < sizeof(T)) {
      is_broken_ = true;
      left_ = {};
      return number;
    }
    std::memcpy(&number, left_.data(), sizeof(T));
    left_.remove_prefix(sizeof(T));
    return number;
  }
  std::string_view Bytes(size_t most) {
    const auto size = Number<uint32_t>();
    if (size > most || size > left_.size()) {
      is_broken_ = true;
      return {};
    }
    const std::string_view bytes = left_.substr(0, size);
    left_.remove_prefix(size);
    return bytes;
  }
  bool Is(Kind kind) { return Number<uint8_t>() == uint8_t(kind); }
  // True if everything was there, and nothing is left.
  bool IsWhole() const { return !is_broken_ && left_.empty(); }
  bool IsBroken() const { return is_broken_; }

 private:
  std::string_view left_;
  bool is_broken_ = false;
};

bool ReadPlace(Reader& reader, Place* place) {
  place->dtype.code = reader.Number<uint8_t>();
  place->dtype.bits = reader.Number<uint8_t>();
  place->dtype.lanes = reader.Number<uint8_t>();
  const auto ndim = reader.Number<uint8_t>();
  place->offset = reader.Number<uint64_t>();
  if (ndim > kMaxRank) return false;
  place->ndim = ndim;
  for (int64_t* numbers : {place->shape, place->strides}) {
    for (int i = 0; i < ndim; ++i) numbers[i] = reader.Number<int64_t>();
    if (std::any_of(numbers, numbers + ndim, [](int64_t n) { return n < 0; })) return false;
  }
  const int bits = place->dtype.bits * place->dtype.lanes;
  return bits > 0 && bits % 8 == 0 && bits <= 128;
}

bool ReadValue(Reader& reader, Value* value) {
  value->tag = Value::Tag(reader.Number<uint8_t>());
  switch (value->tag) {
    case Value::Tag::kNone: return true;
    case Value::Tag::kInt: value->integer = reader.Number<int64_t>(); return true;
    case Value::Tag::kFloat: value->real = reader.Number<double>(); return true;
    case Value::Tag::kBool: value->integer = reader.Number<uint8_t>() != 0; return true;
    case Value::Tag::kText: value->text = reader.Bytes(kMaxText); return true;
    case Value::Tag::kHost: return ReadPlace(reader, &value->place);
    case Value::Tag::kDevice: value->text = reader.Bytes(kMaxHandle); return ReadPlace(reader, &value->place);
  }
  return false;
}

Status ReadValues(Reader& reader, std::vector<Value>* values) {
  const auto count = reader.Number<uint8_t>();
  if (count > kMaxArguments) return Broken("at most 64 values", std::to_string(count));
  values->resize(count);
  for (Value& value : *values) {
    if (!ReadValue(reader, &value) || reader.IsBroken()) return Broken("a value", "another tag, or its end before it");
  }
  return {};
}

Status Whole(const Reader& reader) {
  return reader.IsWhole() ? Status() : Broken("a message of its kind", "another length");
}

}  // namespace

bool Place::operator==(const Place& other) const {
  return dtype.code == other.dtype.code && dtype.bits == other.dtype.bits && dtype.lanes == other.dtype.lanes &&
         ndim == other.ndim && offset == other.offset && std::equal(shape, shape + ndim, other.shape) &&
         std::equal(strides, strides + ndim, other.strides);
}

Status Writer::PutBytes(std::string_view bytes, size_t most, const char* what) {
  if (bytes.size() > most) {
    return Unsendable(std::string(what) + " of at most " + std::to_string(most) + " bytes",
                      std::to_string(bytes.size()));
  }
  Number(uint32_t(bytes.size()));
  if (size() + bytes.size() <= kMaxMessage) std::ranges::copy(bytes, at_);  // of none too, whose address may be null
  at_ += bytes.size();
  return {};
}

Status Writer::PutValue(const Value& value) {
  Number(value.tag);
  switch (value.tag) {
    case Value::Tag::kNone: return {};
    case Value::Tag::kInt: Number(value.integer); return {};
    case Value::Tag::kFloat: Number(value.real); return {};
    case Value::Tag::kBool: Number(uint8_t(value.integer != 0)); return {};
    case Value::Tag::kText: return PutBytes(value.text, kMaxText, "a text");
    case Value::Tag::kDevice: LZ_RETURN_IF_ERROR(PutBytes(value.text, kMaxHandle, "a handle")); break;
    case Value::Tag::kHost: break;
  }
  const Place& place = value.place;
  Number(place.dtype.code);
  Number(place.dtype.bits);
  Number(uint8_t(place.dtype.lanes));
  Number(uint8_t(place.ndim));
  Number(place.offset);
  for (const int64_t* numbers : {place.shape, place.strides}) {
    for (int i = 0; i < place.ndim; ++i) Number(numbers[i]);
  }
  return {};
}

Status Writer::PutValues(std::span<const Value> values) {
  if (values.size() > kMaxArguments) {
    return Unsendable("at most " + std::to_string(kMaxArguments) + " values", std::to_string(values.size()));
  }
  Number(uint8_t(values.size()));
  for (const Value& value : values) LZ_RETURN_IF_ERROR(PutValue(value));
  return {};
}

Status Writer::Finish() const {
  if (size() <= kMaxMessage) return {};
  return Unsendable("at most " + std::to_string(kMaxMessage) + " bytes", std::to_string(size()));
}

Status Writer::Put(const Call& call) {
  Number(Kind::kCall);
  Number(call.function);
  Number(call.threads);
  Number(call.room.offset);
  Number(call.room.bytes);
  LZ_RETURN_IF_ERROR(PutValues(call.arguments));
  return Finish();
}

Status Writer::Put(const Answer& answer) {
  Number(Kind::kResult);
  Number(uint8_t(answer.is_tuple));
  LZ_RETURN_IF_ERROR(PutBytes(answer.warnings, kMaxMessage, "warnings"));
  LZ_RETURN_IF_ERROR(PutValues(answer.results));
  return Finish();
}

Status Writer::PutRoom(const Room& room) {
  Number(Kind::kRoom);
  Number(room.offset);
  Number(room.bytes);
  return Finish();
}

Status Writer::PutNeed(uint64_t bytes) {
  Number(Kind::kNeed);
  Number(bytes);
  return Finish();
}

Status Read(std::string_view message, Call* call) {
  Reader reader(message);
  if (!reader.Is(Kind::kCall)) return Broken("a call", "another kind");
  call->function = reader.Number<uint16_t>();
  call->threads = reader.Number<uint16_t>();
  call->room.offset = reader.Number<uint64_t>();
  call->room.bytes = reader.Number<uint64_t>();
  LZ_RETURN_IF_ERROR(ReadValues(reader, &call->arguments));
  return Whole(reader);
}

Status Read(std::string_view message, Answer* answer) {
  Reader reader(message);
  if (!reader.Is(Kind::kResult)) return Broken("a result", "another kind");
  const auto is_tuple = reader.Number<uint8_t>();
  answer->is_tuple = is_tuple != 0;
  answer->warnings = reader.Bytes(kMaxMessage);
  LZ_RETURN_IF_ERROR(ReadValues(reader, &answer->results));
  if (is_tuple > 1 || (!answer->is_tuple && answer->results.size() != 1)) {
    return Broken("one result, or a tuple", std::to_string(answer->results.size()));
  }
  for (const Value& result : answer->results) {
    const bool is_tensor = result.tag == Value::Tag::kHost || result.tag == Value::Tag::kDevice;
    if (!is_tensor && result.tag != Value::Tag::kNone) return Broken("tensors as results", "another value");
  }
  return Whole(reader);
}

Status Read(std::string_view message, Room* room) {
  Reader reader(message);
  if (!reader.Is(Kind::kRoom)) return Broken("room for outputs", "another kind");
  room->offset = reader.Number<uint64_t>();
  room->bytes = reader.Number<uint64_t>();
  return Whole(reader);
}

Status ReadNeed(std::string_view message, uint64_t* bytes) {
  Reader reader(message);
  if (!reader.Is(Kind::kNeed)) return Broken("a need of room", "another kind");
  *bytes = reader.Number<uint64_t>();
  return Whole(reader);
}

Result<uint64_t> BytesWithin(const Place& place, uint64_t begin, uint64_t end) {
  uint64_t last = 0, bytes = 0;
  bool overflows = false;
  for (int i = 0; i < place.ndim; ++i) {
    if (place.shape[i] == 0) return uint64_t{0};
    uint64_t step = 0;
    overflows |= __builtin_mul_overflow(uint64_t(place.shape[i] - 1), uint64_t(place.strides[i]), &step);
    overflows |= __builtin_add_overflow(last, step, &last);
  }
  const uint64_t item = uint64_t{place.dtype.bits} * place.dtype.lanes / 8;
  overflows |= __builtin_add_overflow(last, uint64_t{1}, &last);
  overflows |= __builtin_mul_overflow(last, item, &bytes);
  const bool inside = place.offset >= begin && place.offset <= end && bytes <= end - place.offset;
  if (overflows || !inside || place.offset % kAlignment != 0) {
    return Broken("a tensor within " + std::to_string(begin) + " to " + std::to_string(end),
                  std::to_string(bytes) + " bytes at " + std::to_string(place.offset));
  }
  return bytes;
}

void SetDenseStrides(const lz_tensor& t, int64_t* strides) {
  int axes[kMaxRank];
  for (int i = 0; i < t.ndim; ++i) axes[i] = t.ndim - 1 - i;
  const auto is_step = [&](int i) { return t.shape[i] <= 1 || t.strides[i] > 0; };
  bool is_dense_order = true;
  for (int i = 0; i < t.ndim; ++i) is_dense_order &= is_step(i);
  if (is_dense_order) {  // of equal ones the last axis is first
    std::stable_sort(axes, axes + t.ndim, [&](int a, int b) {
      return (t.shape[a] > 1 ? t.strides[a] : 0) < (t.shape[b] > 1 ? t.strides[b] : 0);
    });
  }
  int64_t step = 1;
  for (int i = 0; i < t.ndim; ++i) {
    strides[axes[i]] = step;
    step *= std::max<int64_t>(t.shape[axes[i]], 1);
  }
}

}  // namespace lz::worker
