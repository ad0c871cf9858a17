// What a policy says about files that decide which code runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/export.h"
#include "policy/policy.h"

namespace lz {

enum class FileKind : uint8_t {
  kPlugin,      // a shared library, or the descriptor of one
  kDescriptor,  // of another package
  kRecords,     // measured records and databases of other machines
  kTable,       // dispatch tables and lock files
  kCount
};
LZ_OWN std::optional<FileKind> FileKindFromName(std::string_view name);  // "plugin", "descriptor", "records", "table"
bool RequiresSignature(const Policy& policy, FileKind kind);
// kUntrustedFile if the policy requires a signature of the kind and `path`.sig has none of these bytes by a trusted
// key. Callers use the same bytes afterwards.
LZ_OWN Status CheckSigned(const Policy& policy, FileKind kind, const std::string& path, std::string_view bytes);
// The trusted key that has signed these bytes in `path`.sig, whatever the policy requires; else kUntrustedFile.
LZ_OWN Result<std::string> VerifySigned(const Policy& policy, const std::string& path, std::string_view bytes);
// The bytes of a file that no other user can change, else kUntrustedFile; kNotInstalled: it cannot be read.
LZ_OWN Result<std::string> ReadTrusted(const std::string& path, const char* what);

// The C libraries that LAYERZERO_LIBRARIES names and that may be opened, which runs their code. One is refused if the
// process's policy leaves it out of allow_sources, or requires signatures of plugins and it has none, or if another
// user can change the file; a policy that cannot be read refuses all. RefusedLibraries() has the reasons.
std::map<std::string, std::string, std::less<>> CheckedLibraries();

}  // namespace lz
