// Memory that is too large for a stack: threads of Python may have 64 KiB, musl's have 128.
#pragma once

#include <memory>

namespace lz {

// This thread's T, uninitialized, which lives as long as the thread. Its user must not call another user.
template <class T>
T& ScratchOfThread() {
  thread_local const auto scratch = std::make_unique_for_overwrite<T>();  // static TLS is scarce
  return *scratch;
}

}  // namespace lz
