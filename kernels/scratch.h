// Memory for what is too large for a stack: threads of Python may have 64 KiB, musl's have 128.
#pragma once

#include <memory>

namespace lz {

// The T of this thread, not initialised, which lasts as long as the thread. Whoever uses it calls nothing that does.
template <class T>
T& ScratchOfThread() {
  thread_local const auto scratch = std::make_unique_for_overwrite<T>();  // static TLS is scarce
  return *scratch;
}

}  // namespace lz
