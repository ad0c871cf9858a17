// AMX: a core's eight tiles of up to 16 rows x 64 bytes. Written as assembler with tile numbers as template arguments,
// because the load intrinsics of gcc 12 do not declare that they read memory. A process may use tiles after the kernel
// has permitted it, which rows that require kIsaAmxBf16 or kIsaAmxInt8 ensure (platform/cpu.cpp). Source: Intel 64 and
// IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#pragma once

#include <cstdint>

namespace lz::x86 {

// Sets the shapes of this thread's tiles during its life and restores the previous shapes afterwards, without values:
// other libraries configure theirs once in a thread's life.
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
      asm volatile("tilerelease");  // otherwise every thread switch would save 8 KiB more
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

// ---- products of blocks of 16 R rows and 16 C columns: the sums are in tiles 0 to 3, rows in 4 and 5, columns in 6
// and 7
inline constexpr uint16_t kWholeRowBytes[8] = {64, 64, 64, 64, 64, 64, 64, 64};
inline constexpr uint8_t kWholeRows[8] = {16, 16, 16, 16, 16, 16, 16, 16};

// Strides in bytes.
struct Sums {
  float* p;
  int64_t row;   // between rows
  int64_t next;  // to the next 16 columns
};
struct Operand {
  const void* p;
  int64_t row;   // between a tile's rows
  int64_t step;  // to the next 32 values
  int64_t next;  // to the next 16 rows or columns
};

// Calls visit<tile>(address) for each tile of sums.
template <int R, int C, class Visit>
void EachSum(const Sums& sums, const Visit& visit) {
  char *p = reinterpret_cast<char*>(sums.p), *below = p + 16 * sums.row;
  visit.template operator()<0>(p);
  if constexpr (C > 1) visit.template operator()<1>(p + sums.next);
  if constexpr (R > 1) visit.template operator()<2>(below);
  if constexpr (R > 1 && C > 1) visit.template operator()<3>(below + sums.next);
}
template <int R, int C>
void LoadSums(const Sums& sums) {
  EachSum<R, C>(sums, [&]<int kTile>(const char* p) { Tiles::Load<kTile>(p, sums.row); });
}
template <int R, int C>
void ZeroSums(const Sums& sums) {
  EachSum<R, C>(sums, []<int kTile>(const char*) { Tiles::Zero<kTile>(); });
}
template <int R, int C>
void StoreSums(const Sums& sums) {
  EachSum<R, C>(sums, [&]<int kTile>(char* p) { Tiles::Store<kTile>(p, sums.row); });
}

// Accumulates `steps` bf16 products of 32 values.
template <int R, int C>
void AddProducts(const Operand& a, const Operand& b, int64_t steps) {
  const char *pa = static_cast<const char*>(a.p), *pb = static_cast<const char*>(b.p);
  for (int64_t i = 0; i < steps; ++i, pa += a.step, pb += b.step) {
    Tiles::Load<4>(pa, a.row);
    Tiles::Load<6>(pb, b.row);
    Tiles::AddDotBF16<0, 4, 6>();
    if constexpr (C > 1) Tiles::Load<7>(pb + b.next, b.row), Tiles::AddDotBF16<1, 4, 7>();
    if constexpr (R > 1) Tiles::Load<5>(pa + a.next, a.row), Tiles::AddDotBF16<2, 5, 6>();
    if constexpr (R > 1 && C > 1) Tiles::AddDotBF16<3, 5, 7>();
  }
}

}  // namespace lz::x86
