// bpe.tokenize.encode: ids of a numbered tokenizer, room for some of them only, texts that it refuses.
#include <gtest/gtest.h>

#include "../call.h"
#include "ops/tokenize/encode.h"

namespace lz::kernels {
extern const KernelFamily kernels_tokenize_encode_bpe;
}  // namespace lz::kernels

namespace lz {
namespace {
using testing_tokens::Call;
using testing_tokens::SmallTokenizer;

struct Encoded {
  int32_t code;
  std::vector<int32_t> ids;
  std::vector<int64_t> ends;
};
Encoded Encode(const std::string& text, std::vector<int64_t> starts, int64_t number, size_t capacity) {
  std::vector<int32_t> ids(capacity, -1);
  std::vector<int64_t> ends(starts.size() - 1, -1);
  std::vector<char> bytes(text.begin(), text.end());
  const int32_t code = Call(kernels::kernels_tokenize_encode_bpe[0], bytes, starts, ids, ends, number);
  return {code, ids, ends};
}

TEST(BpeTokenizeEncode, HasTheIdsOfANumberedTokenizer) {
  const Encoded encoded = Encode("abba", {0, 2, 4}, SmallTokenizer(), 6);
  EXPECT_EQ(encoded.code, LZ_LAUNCH_DONE);
  EXPECT_EQ(encoded.ids, (std::vector<int32_t>{2, 1, 0, 0, 0, 0}));
  EXPECT_EQ(encoded.ends, (std::vector<int64_t>{1, 3}));
}

TEST(BpeTokenizeEncode, SaysHowMuchRoomIsNeeded) {
  const Encoded encoded = Encode("baba", {0, 4}, SmallTokenizer(), 1);
  EXPECT_EQ(encoded.ids, (std::vector<int32_t>{1}));
  EXPECT_EQ(encoded.ends, (std::vector<int64_t>{3}));
}

TEST(BpeTokenizeEncode, RefusesOtherBytesThanUtf8AndUnknownNumbers) {
  EXPECT_EQ(Encode("a\xFF", {0, 2}, SmallTokenizer(), 4).code, LZ_LAUNCH_REFUSED);
  EXPECT_EQ(Encode("a", {0, 1}, int64_t{1} << 40, 4).code, LZ_LAUNCH_REFUSED);
}

}  // namespace
}  // namespace lz
