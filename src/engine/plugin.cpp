// C++ kernel plugins: a library that exports lz_plugin_descriptor, with a capabilities descriptor that has its rules.
// Everything that can be checked without running the library's code is checked before it is opened.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>

#include "base/trusted_file.h"
#include "engine/engine.h"
#include "policy/trust.h"
#include "registry/descriptor.h"

namespace lz {
namespace {

constexpr const char* kEntry = "lz_plugin_descriptor";
constexpr size_t kMostLibraryBytes = size_t{4} << 30;

Status Refuse(const std::string& field, std::string wanted, std::string got, std::string fix = {},
              StatusCode code = StatusCode::kConfig) {
  return Status(
      code, {.field = "plugin " + field, .wanted = std::move(wanted), .got = std::move(got), .fix = std::move(fix)});
}

Status NoFile(const std::string& path, const char* what) {
  return Refuse(path, std::string("a readable ") + what, "none", "check the path", StatusCode::kNotInstalled);
}

// A private copy of checked bytes that nothing can change: a sealed file in memory. -1: errno has the cause.
int SealedCopy(std::string_view bytes) {
  const int copy = memfd_create("layerzero-plugin", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (copy < 0) return -1;
  while (!bytes.empty()) {
    const ssize_t wrote = write(copy, bytes.data(), bytes.size());
    if (wrote <= 0) break;
    bytes.remove_prefix(size_t(wrote));
  }
  const bool sealed =
      bytes.empty() && fcntl(copy, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  if (sealed) return copy;
  close(copy);
  return -1;
}

// Closes the library unless the plugin was registered.
class Library {
 public:
  ~Library() {
    if (handle_) dlclose(handle_);
  }
  // Opens what was checked: the copy if there is one (its number stays in use, since the loader knows libraries by
  // their names), else the file at `path`.
  Status Open(const std::string& path, int copy) {
    // With a slash, because a bare name would be searched for along the loader's paths.
    const std::string exact = copy >= 0                     ? "/proc/self/fd/" + std::to_string(copy)
                              : path.find('/') == path.npos ? "./" + path
                                                            : path;
    handle_ = dlopen(exact.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) return {};
    const char* error = dlerror();
    const std::string why = error ? error : "an unknown failure";
    if (copy >= 0) close(copy);
    return Refuse(path, "a shared library that loads", why, "", StatusCode::kNotInstalled);
  }
  void* Symbol(const char* name) const { return dlsym(handle_, name); }
  void Keep() { handle_ = nullptr; }

 private:
  void* handle_ = nullptr;
};

Status CheckDigest(const std::string& path, std::string_view bytes, const std::string& wanted) {
  if (wanted.empty()) return {};
  const std::string digest = Sha256Hex(bytes);
  if (digest == wanted) return {};
  return Refuse(path, "SHA-256 " + wanted, digest, "install the library that the descriptor was made for");
}

// Checks the table in the library: struct sizes that this engine reads, and that no text or function is missing.
Status CheckTable(const std::string& path, const lz_plugin* plugin) {
  if (!plugin) return Refuse(path, std::string("a table from ") + kEntry + "()", "NULL");
  // The major decides the meaning of every later field, so it is compared first.
  if (plugin->abi_major != LZ_ABI_MAJOR) {
    return Refuse(path, "ABI major " + std::to_string(LZ_ABI_MAJOR), std::to_string(plugin->abi_major),
                  "build the plugin with the headers of this release", StatusCode::kVersionMismatch);
  }
  if (plugin->size < sizeof(lz_plugin)) {
    return Refuse(path, "lz_plugin.size of at least " + std::to_string(sizeof(lz_plugin)), std::to_string(plugin->size),
                  "set size = sizeof(lz_plugin)", StatusCode::kVersionMismatch);
  }
  if (!plugin->name || !plugin->version || !plugin->kernels || plugin->num_kernels == 0) {
    return Refuse(path, "a name, a version and at least one kernel", "a table without");
  }
  // A newer plugin's rows may be longer than ours: their own size is the step from one to the next.
  const uint32_t step = plugin->kernels->size;
  if (step < sizeof(lz_plugin_kernel) || step % alignof(lz_plugin_kernel) != 0) {
    return Refuse(path, "lz_plugin_kernel.size of at least " + std::to_string(sizeof(lz_plugin_kernel)),
                  std::to_string(step), "set size = sizeof(lz_plugin_kernel) in every row",
                  StatusCode::kVersionMismatch);
  }
  return {};
}

Result<std::vector<const lz_plugin_kernel*>> Rows(const std::string& path, const lz_plugin* plugin) {
  std::vector<const lz_plugin_kernel*> rows;
  const char* first = reinterpret_cast<const char*>(plugin->kernels);
  const uint32_t step = plugin->kernels->size;
  for (uint64_t i = 0; i < plugin->num_kernels; ++i) {
    const auto* row = reinterpret_cast<const lz_plugin_kernel*>(first + i * step);
    const std::string place = path + ": kernels[" + std::to_string(i) + "]";
    if (row->size != step) {
      return Refuse(place, "the size of the first row, " + std::to_string(step), std::to_string(row->size), "",
                    StatusCode::kVersionMismatch);
    }
    if (!row->kernel_id || !row->operation || !row->launch || row->version == 0) {
      return Refuse(place, "kernel_id, operation, launch and a version from 1", "a row without");
    }
    rows.push_back(row);
  }
  return rows;
}

// Joins rules and functions: every row of the table must have rules, and all rules must have a row.
Status Join(const std::string& path, const std::vector<const lz_plugin_kernel*>& rows, Descriptor* descriptor) {
  const auto is = [](const lz_plugin_kernel* row, const DescribedKernel& k) {
    return k.spec.id == row->kernel_id && k.spec.operation == row->operation;
  };
  for (const lz_plugin_kernel* row : rows) {
    const auto n = std::count_if(rows.begin(), rows.end(), [&](const lz_plugin_kernel* other) {
      return std::string_view(other->kernel_id) == row->kernel_id &&
             std::string_view(other->operation) == row->operation;
    });
    const std::string name = std::string("'") + row->kernel_id + "' of " + row->operation;
    if (n != 1) return Refuse(path, "a kernel id once in an operation", name + " again");
    if (std::none_of(descriptor->kernels.begin(), descriptor->kernels.end(), [&](auto& k) { return is(row, k); })) {
      return Refuse(path, "rules for " + name, "none in the descriptor", "add the kernel to the descriptor's ops");
    }
  }
  for (DescribedKernel& k : descriptor->kernels) {
    const auto at = std::find_if(rows.begin(), rows.end(), [&](const auto* row) { return is(row, k); });
    const std::string name = "'" + std::string(k.spec.id) + "' of " + std::string(k.spec.operation);
    if (at == rows.end()) {
      return Refuse(path, "an entry point for " + name, "none in the library's table",
                    "the ids and operations of both must agree");
    }
    if (!k.adapter.empty() || !k.requirements.empty() || !k.workspace_bytes.empty()) {
      return Refuse(path + ": " + name, "no adapter, requires or workspace_bytes: they are for Python libraries",
                    "one of them", "the functions of the table are called");
    }
    k.spec.call = CallKind::kNative;
    k.spec.version = (*at)->version;
    k.spec.launch = (*at)->launch;
    k.spec.workspace = (*at)->workspace;
  }
  return {};
}

std::atomic<Engine::Verifier> g_verifier{nullptr};

// In a registry of its own, so that a kernel that fails was never selectable.
Status SelfTest(std::span<const Registry::Registration> registrations) {
  const Engine::Verifier verifier = g_verifier.load(std::memory_order_acquire);
  if (!verifier) return {};
  Selector selector;
  LZ_RETURN_IF_ERROR(selector.registry().Register(registrations));
  for (const Registry::Registration& r : registrations) {
    LZ_RETURN_IF_ERROR(verifier(selector, *selector.registry().FindKernel(r.spec->operation, r.spec->id)));
  }
  return {};
}

}  // namespace

void Engine::SetVerifier(Verifier verifier) { g_verifier.store(verifier, std::memory_order_release); }

Status Engine::LoadPlugin(const std::string& library, const std::string& descriptor_path) {
  auto text = ReadTrusted(descriptor_path, "descriptor");
  if (!text.ok()) return text.TakeStatus();
  LZ_RETURN_IF_ERROR(startup());  // a policy that cannot be read may require signatures
  const auto policy = PolicyInForce();
  if (policy) LZ_RETURN_IF_ERROR(CheckSigned(*policy, FileKind::kPlugin, descriptor_path, *text));
  auto parsed = ParseDescriptor(*text, descriptor_path, selector_.registry());
  if (!parsed.ok()) return parsed.TakeStatus();
  if (!parsed->probe.empty()) {
    return Refuse(descriptor_path, "no probe: it is for Python libraries", "'" + parsed->probe + "'");
  }
  auto file = TrustedFile::Open(library);
  if (!file.ok()) return file.TakeStatus();
  if (file->fd() < 0) return NoFile(library, "library");
  int copy = -1;
  if (!parsed->library_sha256.empty() || (policy && RequiresSignature(*policy, FileKind::kPlugin))) {
    const auto bytes = file->Read(kMostLibraryBytes);
    if (!bytes) return NoFile(library, "library");
    if (policy) LZ_RETURN_IF_ERROR(CheckSigned(*policy, FileKind::kPlugin, library, *bytes));
    LZ_RETURN_IF_ERROR(CheckDigest(library, *bytes, parsed->library_sha256));
    copy = SealedCopy(*bytes);
    if (copy < 0) return Refuse(library, "a copy in memory of what was checked", std::strerror(errno));
  }
  Library opened;
  LZ_RETURN_IF_ERROR(opened.Open(library, copy));
  const auto entry = reinterpret_cast<lz_plugin_descriptor_fn>(opened.Symbol(kEntry));
  if (!entry) {
    return Refuse(library, std::string("the exported C function ") + kEntry, "none",
                  "declare it extern \"C\" with default visibility");
  }
  const lz_plugin* plugin = entry();
  LZ_RETURN_IF_ERROR(CheckTable(library, plugin));
  auto rows = Rows(library, plugin);
  if (!rows.ok()) return rows.TakeStatus();

  // Registered kernels refer to the descriptor's storage and to the library, which are therefore kept.
  static std::mutex mutex;
  static std::deque<Descriptor>* const kept = new std::deque<Descriptor>;
  std::lock_guard lock(mutex);
  LZ_RETURN_IF_ERROR(Join(library, *rows, &*parsed));
  Descriptor& descriptor = kept->emplace_back(std::move(*parsed));
  std::vector<Registry::Registration> registrations;
  std::deque<RowExtras> extras;
  for (const DescribedKernel& k : descriptor.kernels) {
    RowExtras& d = extras.emplace_back(ExtrasOf(descriptor, k));
    d.origin = "plugin";
    registrations.push_back({&k.spec, {}, {}, nullptr, &d});
  }
  Status status = SelfTest(registrations);
  if (status.ok()) status = selector_.registry().Register(registrations);
  if (!status.ok()) {
    kept->pop_back();
    return status;
  }
  opened.Keep();
  selector_.Invalidate(EpochKind::kCapabilities);
  return {};
}

}  // namespace lz
