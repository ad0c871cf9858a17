// bpe.tokenize.decode: texts of a numbered tokenizer's ids, room for some of the bytes only.
#include <gtest/gtest.h>

#include "../call.h"
#include "ops/tokenize/decode.h"

namespace lz::kernels {
extern const KernelFamily kernels_tokenize_decode_bpe;
}  // namespace lz::kernels

namespace lz {
namespace {
using testing_tokens::Call;
using testing_tokens::SmallTokenizer;

TEST(BpeTokenizeDecode, HasTheTextsOfANumberedTokenizer) {
  std::vector<int32_t> ids{2, 1, 0, 99};
  std::vector<int64_t> starts{0, 1, 4}, ends(2);
  std::vector<char> text(6, 'x');
  EXPECT_EQ(Call(kernels::kernels_tokenize_decode_bpe[0], ids, starts, text, ends, SmallTokenizer()), LZ_LAUNCH_DONE);
  EXPECT_EQ(std::string(text.begin(), text.end()), std::string("abba\0\0", 6));
  EXPECT_EQ(ends, (std::vector<int64_t>{2, 4}));
}

TEST(BpeTokenizeDecode, SaysHowMuchRoomIsNeeded) {
  std::vector<int32_t> ids{2, 2};
  std::vector<int64_t> starts{0, 2}, ends(1);
  std::vector<char> text(3);
  EXPECT_EQ(Call(kernels::kernels_tokenize_decode_bpe[0], ids, starts, text, ends, SmallTokenizer()), LZ_LAUNCH_DONE);
  EXPECT_EQ(std::string(text.begin(), text.end()), "aba");
  EXPECT_EQ(ends, (std::vector<int64_t>{4}));
}

// A tokenizer of the bytes of U+1F600, of the letter a, and of what begins no character.
TEST(BpeTokenizeDecode, WritesUtf8WhereIdsEndInsideACharacter) {
  auto made = tokenize::Tokenizer::Make(R"({"model": {"type": "BPE", "vocab": {"\u00f0": 0, "\u0141": 1, "\u013a": 2,
    "\u0122": 3, "a": 4, "\u00ff": 5}, "merges": []}, "decoder": {"type": "ByteLevel"}})");
  ASSERT_TRUE(made.ok());
  const int64_t number = tokenize::NumberOf(*made);
  const auto text_of = [&](std::vector<int64_t> ids) {
    std::vector<int64_t> starts{0, int64_t(ids.size())}, ends(1);
    std::vector<char> text(40);
    EXPECT_EQ(Call(kernels::kernels_tokenize_decode_bpe[0], ids, starts, text, ends, number), LZ_LAUNCH_DONE);
    return std::string(text.begin(), text.begin() + ends[0]);
  };
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(text_of({0, 1, 2, 3}), "\xF0\x9F\x98\x80");
  EXPECT_EQ(text_of({0, 1, 2}), bad);
  EXPECT_EQ(text_of({0, 1, 4}), bad + "a");
  EXPECT_EQ(text_of({1, 2, 4}), bad + bad + "a");
  EXPECT_EQ(text_of({0, 3}), bad + bad);  // 0x80 cannot be second after 0xF0
  EXPECT_EQ(text_of({5, 4, 0}), bad + "a" + bad);
}

TEST(BpeTokenizeDecode, ReadsInt64WithoutCuttingIt) {
  std::vector<int64_t> ids{2, (int64_t{1} << 31) + 1}, starts{0, 2}, ends(1);
  std::vector<char> text(3);
  EXPECT_EQ(Call(kernels::kernels_tokenize_decode_bpe[0], ids, starts, text, ends, SmallTokenizer()), LZ_LAUNCH_DONE);
  EXPECT_EQ(ends, (std::vector<int64_t>{2}));
  for (int64_t id : {int64_t{-5}, (int64_t{1} << 32) + 1}) {
    ids[1] = id;
    EXPECT_EQ(Call(kernels::kernels_tokenize_decode_bpe[0], ids, starts, text, ends, SmallTokenizer()),
              LZ_LAUNCH_REFUSED);
  }
}

}  // namespace
}  // namespace lz
