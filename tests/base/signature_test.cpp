// Signatures of files: what is accepted, and every other change of file, signature or trust list refused.
#include "base/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "base/trusted_file.h"

namespace lz {
namespace {

using testing::HasSubstr;

struct Signed {
  KeyPair pair = NewKeyPair();
  std::string bytes = "a file with\0a zero" + std::string(3, '\0');
  std::string signature = *Sign(bytes, pair.pem, "key");
  std::vector<std::string> trusted = {pair.public_key};
  std::string Refusal(std::string_view of, std::string_view by) const {
    const Status status = CheckSignature("f", of, by, trusted);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kUntrustedFile);
    return status.ok() ? "" : status.Text();
  }
};

TEST(Signature, OfThisFileByATrustedKeyIsAccepted) {
  const Signed s;
  EXPECT_EQ(s.Refusal(s.bytes, s.signature), "");
  EXPECT_EQ(s.pair.public_key.size(), 64u);
  EXPECT_EQ(*Sign(s.bytes, s.pair.pem, "key"), s.signature);
}

// The first test vector of RFC 8032 as OpenSSL writes its private key: the format is the one that others read.
TEST(Signature, KeysAreThoseOfPkcs8) {
  constexpr std::string_view kPem =
      "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n"
      "-----END PRIVATE KEY-----\n";
  const auto text = Sign("", kPem, "key");
  ASSERT_TRUE(text.ok()) << text.status().Text();
  EXPECT_EQ(nlohmann::json::parse(*text)["key"], "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
}

TEST(Signature, EveryChangeIsRefused) {
  const Signed s;
  EXPECT_THAT(s.Refusal(s.bytes + "x", s.signature), HasSubstr("sign it again"));
  EXPECT_THAT(s.Refusal("", s.signature), HasSubstr("SHA-256"));
  const auto changed = [&](const char* key, const nlohmann::json& value) {
    auto file = nlohmann::json::parse(s.signature);
    file[key] = value;
    return s.Refusal(s.bytes, file.dump());
  };
  const Signed other;
  const auto other_file = nlohmann::json::parse(other.signature);
  EXPECT_THAT(changed("signature", other_file["signature"]), HasSubstr("made, got another one"));
  EXPECT_THAT(changed("key", other.pair.public_key), HasSubstr("add this key to security.trusted_keys"));
  EXPECT_THAT(changed("key", std::string(64, '0')), HasSubstr("trusted_keys"));
  EXPECT_THAT(changed("key", 7), HasSubstr("64 hexadecimal digits"));
  EXPECT_THAT(changed("signature", "00"), HasSubstr("128 hexadecimal digits"));
  EXPECT_THAT(changed("algorithm", "none"), HasSubstr("ed25519"));
  EXPECT_THAT(changed("version", 2), HasSubstr("version 1"));
  EXPECT_THAT(changed("more", 2), HasSubstr("version 1"));
  EXPECT_THAT(s.Refusal(s.bytes, "{"), HasSubstr("layerzero sign 'f'"));
  EXPECT_THAT(s.Refusal(s.bytes, "[]"), HasSubstr("version 1"));
  EXPECT_THAT(s.Refusal(s.bytes, std::string(kMostSignatureBytes + 1, ' ')), HasSubstr("bytes"));
  EXPECT_THAT(CheckSignature("f", s.bytes, s.signature, {}).Text(), HasSubstr("trusted_keys"));
}

// A key of small order accepts signatures that nobody made; it is refused even if the list has it.
TEST(Signature, KeysOfSmallOrderAreRefused) {
  Signed s;
  auto file = nlohmann::json::parse(s.signature);
  s.trusted = {"01" + std::string(62, '0')};
  file["key"] = s.trusted[0];
  file["signature"] = "01" + std::string(126, '0');
  EXPECT_NE(s.Refusal(s.bytes, file.dump()), "");
}

TEST(Signature, OneChangedBitOfAnythingIsRefused) {
  const Signed s;
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = s.bytes, signature = s.signature;
    std::string& text = round % 2 ? bytes : signature;
    text[random() % text.size()] ^= char(1 << (random() % 7));
    if (CheckSignature("f", bytes, signature, s.trusted).ok()) {
      for (char& c : signature) c = c >= 'A' && c <= 'F' ? char(c - 'A' + 'a') : c;  // digits of either case
      EXPECT_EQ(nlohmann::json::parse(signature), nlohmann::json::parse(s.signature)) << signature;  // a blank
      EXPECT_EQ(bytes, s.bytes);
    }
  }
}

TEST(Signature, OtherPrivateKeysAreRefused) {
  for (const std::string& pem :
       {std::string(), std::string("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----"),
        std::string("-----END PRIVATE KEY----------BEGIN PRIVATE KEY-----"),
        "-----BEGIN PRIVATE KEY-----\n" + std::string(64, 'A') + "\n-----END PRIVATE KEY-----"}) {
    const auto text = Sign("x", pem, "k.pem");
    ASSERT_FALSE(text.ok());
    EXPECT_THAT(text.status().Text(), HasSubstr("k.pem: wanted an Ed25519 private key"));
  }
}

}  // namespace
}  // namespace lz
