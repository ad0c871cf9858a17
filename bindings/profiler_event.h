// An event of torch's profiler around a kernel: "layerzero::norm.rms [hwy.norm.rms]". Its functions are looked up once,
// when the first kernel runs: no binding runs one before torch is loaded, and arrays of other libraries load it.
// Without them, or while no profiler runs on this thread, nothing is recorded.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <string>
#include <utility>

#include "registry/registry.h"

namespace lz {

class ProfilerEvent {
 public:
  explicit ProfilerEvent(const KernelEntry& kernel) {
    if (Torch& t = Found(); t.active && t.active()) [[unlikely]]
      Start(t, kernel);
  }
  ~ProfilerEvent() {
    if (event_) [[unlikely]]
      Found().end(event_);
  }
  ProfilerEvent(const ProfilerEvent&) = delete;
  ProfilerEvent& operator=(const ProfilerEvent&) = delete;

  // The same as functions. Begin returns nullptr where nothing is recorded, which End accepts.
  static bool IsActive() { return Found().active && Found().active(); }
  static void* Begin(const KernelEntry& kernel) { return ProfilerEvent(kernel).Release(); }
  static void End(void* event) {
    if (event) Found().end(event);
  }

 private:
  struct Torch {
    bool (*active)() = nullptr;  // true if an observer of this thread wants events; nullptr: a function is missing
    int32_t (*start)(const char* name, void* kwargs, const void* inputs, uint64_t num_inputs, void** event) = nullptr;
    int32_t (*end)(void* event) = nullptr;
  };

  static Torch& Found() {
    static Torch found = [] {
      Torch t;
      void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
      if (!library) return t;
      t.start = reinterpret_cast<decltype(t.start)>(dlsym(library, "aoti_record_function_start"));
      t.end = reinterpret_cast<decltype(t.end)>(dlsym(library, "aoti_record_function_end"));
      if (t.start && t.end) {
        t.active = reinterpret_cast<decltype(t.active)>(dlsym(library, "_ZN2at23hasThreadLocalCallbacksEv"));
      }
      return t;
    }();
    return found;
  }

  [[gnu::noinline, gnu::cold]] void Start(const Torch& t, const KernelEntry& kernel) {
    const std::string name = "layerzero::" + kernel.operation + " [" + kernel.id + "]";
    if (t.start(name.c_str(), nullptr, nullptr, 0, &event_) != 0) event_ = nullptr;
  }

  void* Release() { return std::exchange(event_, nullptr); }

  void* event_ = nullptr;
};

}  // namespace lz
