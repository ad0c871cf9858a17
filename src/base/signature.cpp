#include "base/signature.h"

#include <sodium.h>

#include <algorithm>
#include <array>

#include "base/json_reader.h"
#include "base/trusted_file.h"

namespace lz {
namespace {

using Seed = std::array<unsigned char, crypto_sign_SEEDBYTES>;
constexpr std::string_view kBegin = "-----BEGIN PRIVATE KEY-----", kEnd = "-----END PRIVATE KEY-----";
// What comes before the 32 bytes of an Ed25519 private key in PKCS #8 (RFC 8410).
constexpr auto kPrefix = std::to_array<unsigned char>(
    {0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20});

std::string Hex(std::span<const unsigned char> bytes) {
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

std::string DigestOf(std::string_view bytes) {
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest;
  crypto_hash_sha256(digest.data(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  return Hex(digest);
}

// False unless `text` has exactly the digits of `out`.
bool FromHex(std::string_view text, std::span<unsigned char> out) {
  size_t length = 0;
  return text.size() == 2 * out.size() &&
         sodium_hex2bin(out.data(), out.size(), text.data(), text.size(), nullptr, &length, nullptr) == 0 &&
         length == out.size();
}

// What is signed: the digest, after words that no other use of a key signs.
std::string Message(std::string_view sha256) { return "layerzero file signature 1\n" + std::string(sha256); }

bool ReadSeed(std::string_view pem, Seed* seed) {
  const size_t begin = pem.find(kBegin), end = pem.find(kEnd);
  if (begin == pem.npos || end == pem.npos || end < begin + kBegin.size()) return false;
  const std::string_view text = pem.substr(begin + kBegin.size(), end - begin - kBegin.size());
  std::array<unsigned char, kPrefix.size() + crypto_sign_SEEDBYTES> der = {};
  size_t length = 0;
  const bool read = sodium_base642bin(der.data(), der.size(), text.data(), text.size(), " \r\n", &length, nullptr,
                                      sodium_base64_VARIANT_ORIGINAL) == 0 &&
                    length == der.size() && std::equal(kPrefix.begin(), kPrefix.end(), der.begin());
  std::copy(der.begin() + kPrefix.size(), der.end(), seed->begin());
  sodium_memzero(der.data(), der.size());
  return read;
}

}  // namespace

KeyPair NewKeyPair() {
  std::array<unsigned char, crypto_sign_PUBLICKEYBYTES> key;
  std::array<unsigned char, crypto_sign_SECRETKEYBYTES> secret;
  [[maybe_unused]] const int ready = sodium_init();  // faster code; random numbers are there without it
  crypto_sign_keypair(key.data(), secret.data());
  std::array<unsigned char, kPrefix.size() + crypto_sign_SEEDBYTES> der;
  std::copy(kPrefix.begin(), kPrefix.end(), der.begin());
  std::copy_n(secret.begin(), crypto_sign_SEEDBYTES, der.begin() + kPrefix.size());
  std::array<char, sodium_base64_ENCODED_LEN(sizeof(der), sodium_base64_VARIANT_ORIGINAL)> base64;
  sodium_bin2base64(base64.data(), base64.size(), der.data(), der.size(), sodium_base64_VARIANT_ORIGINAL);
  KeyPair pair{.pem = std::string(kBegin) + "\n" + base64.data() + "\n" + std::string(kEnd) + "\n",
               .public_key = Hex(key)};
  sodium_memzero(secret.data(), secret.size());
  sodium_memzero(der.data(), der.size());
  return pair;
}

Result<std::string> Sign(std::string_view bytes, std::string_view pem, const std::string& what) {
  Seed seed;
  if (!ReadSeed(pem, &seed)) {
    return Status(StatusCode::kConfig, {.field = what,
                                        .wanted = "an Ed25519 private key in PEM, without a password",
                                        .got = "something else",
                                        .fix = "`layerzero sign --new-key FILE` makes one"});
  }
  std::array<unsigned char, crypto_sign_PUBLICKEYBYTES> key;
  std::array<unsigned char, crypto_sign_SECRETKEYBYTES> secret;
  std::array<unsigned char, crypto_sign_BYTES> signature;
  crypto_sign_seed_keypair(key.data(), secret.data(), seed.data());
  const std::string sha256 = DigestOf(bytes), message = Message(sha256);
  crypto_sign_detached(signature.data(), nullptr, reinterpret_cast<const unsigned char*>(message.data()),
                       message.size(), secret.data());
  sodium_memzero(seed.data(), seed.size());
  sodium_memzero(secret.data(), secret.size());
  const nlohmann::ordered_json file = {
      {"version", 1}, {"algorithm", "ed25519"}, {"key", Hex(key)}, {"sha256", sha256}, {"signature", Hex(signature)}};
  return file.dump(1) + "\n";
}

Status CheckSignature(const std::string& path, std::string_view bytes, std::string_view text,
                      std::span<const std::string> trusted, std::string* signed_by) {
  const std::string name = path + std::string(kSignatureSuffix);
  const auto refuse = [&](const std::string& field, std::string wanted, std::string got, std::string fix = {}) {
    if (fix.empty()) fix = "run `layerzero sign '" + path + "' --key KEY` with a key of security.trusted_keys";
    return Status(StatusCode::kUntrustedFile,
                  {.field = field, .wanted = std::move(wanted), .got = std::move(got), .fix = std::move(fix)});
  };
  auto file = ReadJson(text, {.what = name, .max_bytes = kMostSignatureBytes, .max_depth = 2, .max_values = 16});
  if (!file.ok()) return refuse(name, file.status().parts().wanted, file.status().parts().got);
  const auto field = [&](const char* key) {
    const auto at = file->is_object() ? file->find(key) : file->end();
    return at != file->end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  const auto version = file->is_object() ? file->find("version") : file->end();
  if (version == file->end() || *version != 1 || file->size() != 5 || field("algorithm") != "ed25519") {
    return refuse(name, "a signature file of version 1 with algorithm ed25519", "another one");
  }
  std::array<unsigned char, crypto_sign_PUBLICKEYBYTES> key;
  std::array<unsigned char, crypto_sign_BYTES> signature;
  if (!FromHex(field("key"), key)) return refuse(name + ": key", "64 hexadecimal digits", JsonText(field("key")));
  if (!FromHex(field("signature"), signature)) {
    return refuse(name + ": signature", "128 hexadecimal digits", JsonText(field("signature")));
  }
  if (std::ranges::find(trusted, Hex(key)) == trusted.end()) {
    return refuse(path, "a signature by a key of security.trusted_keys", "one by " + Hex(key),
                  "if you trust its owner, add this key to security.trusted_keys");
  }
  const std::string sha256 = DigestOf(bytes), message = Message(sha256);
  if (field("sha256") != sha256) {
    return refuse(path, "the file that was signed, of SHA-256 " + field("sha256"), sha256,
                  "install the signed file again; if the change is yours, sign it again");
  }
  if (crypto_sign_verify_detached(signature.data(), reinterpret_cast<const unsigned char*>(message.data()),
                                  message.size(), key.data()) != 0) {
    return refuse(path, "a signature that the key " + Hex(key) + " made", "another one");
  }
  if (signed_by) *signed_by = Hex(key);
  return {};
}

}  // namespace lz
