// Detached signatures of files: Ed25519 by libsodium over the file's SHA-256, in FILE.sig.
//   {"version": 1, "algorithm": "ed25519", "key": "<public key>", "sha256": "<digest>", "signature": "<signature>"}
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/export.h"
#include "core/status.h"

namespace lz {

inline constexpr std::string_view kSignatureSuffix = ".sig";
inline constexpr size_t kMostSignatureBytes = 4096;

// A key pair as text: the private key in PEM (PKCS #8), which `openssl genpkey -algorithm ed25519` makes too, and the
// public key as 64 hexadecimal digits.
struct KeyPair {
  std::string pem, public_key;
};
LZ_OWN KeyPair NewKeyPair();

// The text of the signature file for `bytes`. kConfig: `pem` is not such a private key; `what` names it.
LZ_OWN Result<std::string> Sign(std::string_view bytes, std::string_view pem, const std::string& what);

// kUntrustedFile, with what to do, unless `signature` is a signature of `bytes` by one of the `trusted` public keys.
// `path` names the file in messages; `*signed_by` is the key that signed, if not nullptr.
Status CheckSignature(const std::string& path, std::string_view bytes, std::string_view signature,
                      std::span<const std::string> trusted, std::string* signed_by = nullptr);

}  // namespace lz
