#include "worker/message.h"

#include <gtest/gtest.h>

#include <string>

namespace lz::worker {
namespace {

constexpr lz_dtype kFloat32 = {2, 32, 1};

Value Tensor(std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides, uint64_t offset = kDataAt) {
  Value value{.tag = Value::Tag::kHost};
  value.place = {.dtype = kFloat32, .ndim = int32_t(shape.size()), .offset = offset};
  std::copy(shape.begin(), shape.end(), value.place.shape);
  std::copy(strides.begin(), strides.end(), value.place.strides);
  return value;
}
template <class Message>
Result<std::string> Written(const Message& message) {
  std::string memory(kMaxMessage, '\0');
  Writer writer(memory.data());
  LZ_RETURN_IF_ERROR(writer.Put(message));
  memory.resize(writer.size());
  return memory;
}
Call Example() {
  Value device = Tensor({2, 3}, {3, 1}, 128);
  device.tag = Value::Tag::kDevice;
  device.text = "handle";
  return {.function = 3,
          .threads = 4,
          .room = {kDataAt, 4096},
          .arguments = {Tensor({2, 3}, {3, 1}),
                        {},
                        {.tag = Value::Tag::kInt, .integer = -7},
                        {.tag = Value::Tag::kFloat, .real = -2.5},
                        {.tag = Value::Tag::kBool, .integer = 1},
                        {.tag = Value::Tag::kText, .text = "exact"},
                        device}};
}

TEST(WorkerMessage, IsReadAsItWasWritten) {
  const Call call = Example();
  const auto bytes = Written(call);
  ASSERT_TRUE(bytes.ok());
  Call found;
  ASSERT_TRUE(Read(*bytes, &found).ok());
  EXPECT_EQ(found.function, 3);
  EXPECT_EQ(found.threads, 4);
  EXPECT_EQ(found.room.offset, kDataAt);
  EXPECT_EQ(found.room.bytes, 4096u);
  ASSERT_EQ(found.arguments.size(), call.arguments.size());
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    EXPECT_EQ(found.arguments[i].tag, call.arguments[i].tag);
    EXPECT_EQ(found.arguments[i].integer, call.arguments[i].integer);
    EXPECT_EQ(found.arguments[i].real, call.arguments[i].real);
    EXPECT_EQ(found.arguments[i].text, call.arguments[i].text);
    EXPECT_TRUE(found.arguments[i].place == call.arguments[i].place);
  }
  const Answer answer{.is_tuple = true, .warnings = "[]", .results = {Tensor({4}, {1}), {}}};
  const auto written = Written(answer);
  ASSERT_TRUE(written.ok());
  Answer again;  // whose texts are the message's
  ASSERT_TRUE(Read(*written, &again).ok());
  EXPECT_TRUE(again.is_tuple);
  EXPECT_EQ(again.warnings, "[]");
  EXPECT_EQ(again.results.size(), 2u);
}

TEST(WorkerMessage, EveryPrefixAndAByteTooManyAreRefused) {
  const std::string call = *Written(Example());
  const std::string answer = *Written(Answer{.results = {Tensor({2}, {1})}});
  Call found;
  Answer result;
  for (size_t n = 0; n < call.size(); ++n) EXPECT_FALSE(Read(std::string_view(call).substr(0, n), &found).ok()) << n;
  for (size_t n = 0; n < answer.size(); ++n) {
    EXPECT_FALSE(Read(std::string_view(answer).substr(0, n), &result).ok()) << n;
  }
  EXPECT_EQ(Read(call + "x", &found).code(), StatusCode::kInvalidRequest);
  EXPECT_EQ(Read(answer + "x", &result).code(), StatusCode::kInvalidRequest);
  EXPECT_EQ(Read(answer, &found).code(), StatusCode::kInvalidRequest);
}

TEST(WorkerMessage, WhatIsNoResultIsRefused) {
  Answer found;
  const Answer text{.results = {{.tag = Value::Tag::kText, .text = "a"}}}, two{.results = {{}, {}}};
  EXPECT_FALSE(Read(*Written(text), &found).ok());
  EXPECT_FALSE(Read(*Written(two), &found).ok());
  EXPECT_TRUE(Read(*Written(Answer{.is_tuple = true, .results = two.results}), &found).ok());
}

TEST(WorkerMessage, ValuesHaveLimits) {
  const std::string long_text(kMaxText + 1, 'x'), text(kMaxText, 'x');
  const auto of = [](size_t count, Value value) { return Call{.arguments = std::vector<Value>(count, value)}; };
  EXPECT_EQ(Written(of(1, {.tag = Value::Tag::kText, .text = long_text})).status().code(), StatusCode::kWrongType);
  EXPECT_TRUE(Written(of(7, {.tag = Value::Tag::kText, .text = text})).ok());
  EXPECT_EQ(Written(of(8, {.tag = Value::Tag::kText, .text = text})).status().code(), StatusCode::kWrongType);
  EXPECT_EQ(Written(of(kMaxArguments + 1, {})).status().code(), StatusCode::kWrongType);
}

TEST(WorkerMessage, PlacesOutsideOfTheirBlockAreRefused) {
  constexpr uint64_t kBegin = kDataAt, kEnd = kDataAt + 4096;
  EXPECT_EQ(*BytesWithin(Tensor({2, 3}, {3, 1}).place, kBegin, kEnd), 24u);
  EXPECT_EQ(*BytesWithin(Tensor({0, 3}, {3, 1}, 7).place, kBegin, kEnd), 0u);
  EXPECT_EQ(*BytesWithin(Tensor({1024}, {1}).place, kBegin, kEnd), 4096u);
  for (const Value& value :
       {Tensor({2, 3}, {3, 1}, kBegin - 64), Tensor({2, 3}, {3, 1}, kEnd), Tensor({2, 3}, {3, 1}, kBegin + 4),
        Tensor({1025}, {1}), Tensor({2, 3}, {int64_t{1} << 60, 1}), Tensor({2, 3}, {3, 1}, uint64_t{1} << 63),
        Tensor({int64_t{1} << 62, 3}, {1, 1}), Tensor({INT64_MAX, INT64_MAX}, {INT64_MAX, INT64_MAX})}) {
    EXPECT_FALSE(BytesWithin(value.place, kBegin, kEnd).ok());
  }
}

TEST(WorkerMessage, DenseStridesKeepTheOrder) {
  const auto dense = [](std::vector<int64_t> shape, std::vector<int64_t> strides) {
    lz_tensor t{.ndim = int32_t(shape.size()), .shape = shape.data(), .strides = strides.data()};
    std::vector<int64_t> found(shape.size());
    SetDenseStrides(t, found.data());
    return found;
  };
  using V = std::vector<int64_t>;
  EXPECT_EQ(dense({2, 3}, {3, 1}), (V{3, 1}));
  EXPECT_EQ(dense({2, 3}, {1, 2}), (V{1, 2}));
  EXPECT_EQ(dense({2, 3}, {40, 4}), (V{3, 1}));
  EXPECT_EQ(dense({2, 3}, {4, 40}), (V{1, 2}));
  EXPECT_EQ(dense({2, 3}, {0, 1}), (V{3, 1}));
  EXPECT_EQ(dense({2, 1, 3}, {3, 99, 1}), (V{3, 1, 1}));  // an axis of one element may have any stride
  EXPECT_EQ(dense({}, {}), V{});
}

}  // namespace
}  // namespace lz::worker
