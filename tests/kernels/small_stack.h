// What a kernel may take of a stack: threads of Python and of other C libraries have far less than a process's first.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

namespace lz::testing {

// Runs f in a thread whose stack has 128 KiB, as musl's threads have.
template <class F>
void OnSmallStack(F f) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 128 << 10), 0);
  const auto run = [](void* body) -> void* {
    (*static_cast<F*>(body))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &f), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

}  // namespace lz::testing
