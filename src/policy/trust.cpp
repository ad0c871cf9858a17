#include "policy/trust.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/signature.h"
#include "base/trusted_file.h"
#include "registry/refused_libraries.h"

namespace lz {
namespace {

constexpr size_t kMostDataBytes = size_t{64} << 20;  // each parser has a limit of its own below it
constexpr size_t kMostLibraryBytes = size_t{4} << 30;

nlohmann::json Setting(const Policy& policy, const char* key) {
  const auto at = policy.settings.find(key);
  return at == policy.settings.end() ? nlohmann::json() : nlohmann::json::parse(at->second, nullptr, false);
}

// `*key`: the trusted key that signed.
Status CheckSignatureOf(const Policy& policy, const std::string& path, std::string_view bytes,
                        std::string* key = nullptr) {
  const std::string name = path + std::string(kSignatureSuffix);
  auto signature = ReadTrustedFile(name, kMostSignatureBytes);
  if (!signature.ok()) return signature.TakeStatus();
  if (!*signature) {
    return Status(StatusCode::kUntrustedFile,
                  {.field = path,
                   .wanted = "a signature, in " + name,
                   .got = std::strerror(errno),
                   .fix = "run `layerzero sign '" + path + "' --key KEY` with a key of security.trusted_keys"});
  }
  const auto keys = Setting(policy, "security.trusted_keys");
  return CheckSignature(path, bytes, **signature,
                        keys.is_array() ? keys.get<std::vector<std::string>>() : std::vector<std::string>(), key);
}

// Why a named library is not opened; nothing: it is.
RefusedLibrary WhyNot(const Policy& policy, std::string_view source, const std::string& path) {
  const auto refuse = [](const Status& status, ReasonCode code) {
    return RefusedLibrary{status.ok() ? "" : status.Text(), code};
  };
  const auto& allowed = policy.allow_sources;
  if (!allowed.empty() && std::ranges::none_of(allowed, [&](auto& glob) { return GlobMatch(glob, source); })) {
    return refuse(Status(StatusCode::kUntrustedFile, {.field = "LAYERZERO_LIBRARIES",
                                                      .wanted = "a library of the policy's allow_sources",
                                                      .got = "'" + std::string(source) + "', which was not opened",
                                                      .fix = "add it to allow_sources"}),
                  ReasonCode::kPolicyDenied);
  }
  if (const size_t slash = path.rfind('/'); slash != path.npos) {  // a bare name is one of the system's libraries
    for (const std::string& checked : {path, path.substr(0, slash + 1)}) {
      if (Status status = CheckTrusted(checked); !status.ok()) return refuse(status, ReasonCode::kNotInstalled);
    }
  }
  if (!RequiresSignature(policy, FileKind::kPlugin)) return {};
  auto bytes = ReadTrustedFile(path, kMostLibraryBytes);
  const bool read = bytes.ok() && *bytes;
  return refuse(CheckSignatureOf(policy, path, read ? std::string_view(**bytes) : std::string_view()),
                ReasonCode::kPolicyDenied);
}

Result<Policy> PolicyOfProcess() {
  auto layers = ProcessLayers();
  if (!layers.ok()) return layers.TakeStatus();
  return ParsePolicy(*layers);
}

}  // namespace

std::optional<FileKind> FileKindFromName(std::string_view name) {
  constexpr std::array<std::string_view, size_t(FileKind::kCount)> kNames = {"plugin", "descriptor", "records",
                                                                             "table"};
  const auto at = std::ranges::find(kNames, name);
  if (at == kNames.end()) return {};
  return FileKind(at - kNames.begin());
}

Result<std::string> VerifySigned(const Policy& policy, const std::string& path, std::string_view bytes) {
  std::string key;
  LZ_RETURN_IF_ERROR(CheckSignatureOf(policy, path, bytes, &key));
  return key;
}

bool RequiresSignature(const Policy& policy, FileKind kind) {
  const auto required = Setting(policy, "security.require_signatures");
  return required == "all" || (required == "plugins" && kind == FileKind::kPlugin);
}

Status CheckSigned(const Policy& policy, FileKind kind, const std::string& path, std::string_view bytes) {
  return RequiresSignature(policy, kind) ? CheckSignatureOf(policy, path, bytes) : Status();
}

Result<std::string> ReadTrusted(const std::string& path, const char* what) {
  auto text = ReadTrustedFile(path, kMostDataBytes);
  if (!text.ok()) return text.TakeStatus();
  if (*text) return std::move(**text);
  return Status(StatusCode::kNotInstalled, {.field = path,
                                            .wanted = std::string("a readable ") + what,
                                            .got = std::strerror(errno),
                                            .fix = "check the path"});
}

std::map<std::string, std::string, std::less<>> CheckedLibraries() {
  auto named = NamedLibraries();
  if (named.empty()) return named;
  const auto policy = PolicyOfProcess();
  for (auto at = named.begin(); at != named.end();) {
    RefusedLibrary refused =
        policy.ok() ? WhyNot(*policy, at->first, at->second) : RefusedLibrary{policy.status().Text()};
    if (refused.why.empty()) {
      ++at;
      continue;
    }
    RefusedLibraries()[at->first] = std::move(refused);
    at = named.erase(at);
  }
  return named;
}

}  // namespace lz
