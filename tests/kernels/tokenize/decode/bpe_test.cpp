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
  std::vector<int32_t> ids{2, 1, 0, 99, -5};
  std::vector<int64_t> starts{0, 1, 5}, ends(2);
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

}  // namespace
}  // namespace lz
