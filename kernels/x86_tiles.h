// AMX: a core's eight tiles of up to 16 rows x 64 bytes. Written as assembler with tile numbers as template arguments:
// gcc 12's intrinsics of loads do not tell the compiler that they read memory.
// A process may use tiles once the kernel has permitted it: a row that wants kIsaAmxBf16 or kIsaAmxInt8 has that
// (platform/cpu.cpp). Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#pragma once

#include <cstdint>

namespace lz::x86 {

// Within its scope this thread's tiles have the given shapes. Behind it they have those from before, without their
// values: other libraries set theirs once in a thread's life.
class Tiles {
 public:
  explicit Tiles(const uint16_t (&row_bytes)[8], const uint8_t (&rows)[8]) {
    asm volatile("sttilecfg %0" : "=m"(before_));
    Config config = {.palette = 1};
    for (int i = 0; i < 8; ++i) config.row_bytes[i] = row_bytes[i], config.rows[i] = rows[i];
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  ~Tiles() {
    if (before_.palette == 0) {
      asm volatile("tilerelease");  // without it, every switch of threads would save 8 KiB more
    } else {
      asm volatile("ldtilecfg %0" : : "m"(before_));
    }
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  static void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // Rows are `stride` bytes apart.
  template <int kTile>
  static void Load(const void* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void Store(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  // sums[i][j] += pairs of bf16 a[i][2 p, 2 p + 1] * b[p][2 j, 2 j + 1], in FP32, denormals as zero.
  template <int kSums, int kA, int kB>
  static void AddDotBF16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
  }
  // sums[i][j] += fours of signed bytes a[i][4 p ..] * b[p][4 j ..], in int32.
  template <int kSums, int kA, int kB>
  static void AddDotInt8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
  }

 private:
  struct alignas(64) Config {
    uint8_t palette = 0;  // 0: no tiles
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  Config before_;
};

}  // namespace lz::x86
