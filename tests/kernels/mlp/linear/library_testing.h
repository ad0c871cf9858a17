// What mlp.linear's kernels of C libraries have in common: each equals the reference where its library is installed.
#pragma once

#include <thread>

#include "tests/kernels/libraries.h"
#include "tests/kernels/mlp/linear/linear_testing.h"

namespace lz::testing {

class LibraryTest : public ::testing::Test {
 protected:
  struct Subject {
    const KernelSpec& kernel;
    DType type = DType::kF32;
    bool column_major = false;  // its weights
  };
  explicit LibraryTest(const Subject& subject) : subject_(subject) {}
  const KernelSpec& kernel() const { return subject_.kernel; }
  void SetUp() override {
    const char* why = libraries::OpenFor(kernel());
    if (!why) return;
    GTEST_SKIP() << why;
  }

  void ExpectLikeTheReference() {
    for (int64_t rows : {1, 2, 7, 33})
      for (int64_t n : {1, 63, 64, 65, 130})
        for (int64_t k : {1, 31, 256}) Expect({.rows = rows, .n = n, .k = k, .bias = k % 2 == 0});
    Expect({.rows = 0, .n = 9, .k = 16});
    Expect({.rows = 9, .n = 0, .k = 16, .bias = true});
  }
  // Each thread has primitives, streams and thread counts of its own.
  void ExpectLikeTheReferenceOnManyThreads() {
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < 8; ++t) {
      threads.emplace_back([this, t] {
        for (int64_t n = 60; n < 70; ++n) Expect({.rows = 3 + t, .n = n, .k = 40, .bias = true});
        for (int i = 0; i < 4; ++i) Expect({.rows = 2 + t, .n = 512, .k = 700});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void ExpectLikeTheReferenceInParts() {
    for (int64_t rows : {50, 100})
      for (int64_t parts = 2; parts <= 5; ++parts)
        Expect({.rows = rows, .n = 203, .k = 300, .bias = true, .parts = parts});
  }
  void Expect(LinearCall call) {
    call.type = subject_.type;
    call.column_major = subject_.column_major;
    ExpectLikeReference(kernel(), call);
  }

 private:
  const Subject subject_;
};

}  // namespace lz::testing
