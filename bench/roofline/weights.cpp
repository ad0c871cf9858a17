// The loops of products with quantized weights: weights in the L1 cache are converted in registers and multiplied with
// the input, by the shortest known instruction sequences. Everything else that a kernel needs is excluded: scales, sums
// of lanes, edges. Weights are converted, by look-up or for integers by arithmetic, as exactly as kernels must.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "bench/roofline/roofline.h"

#if defined(__x86_64__)
// gcc 12 warns about the undefined upper parts in its own intrinsics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace lz::roofline {
namespace {

#if defined(__x86_64__)
#define LZ_WEIGHTS __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,avx512vnni")))
#define LZ_WEIGHTS_INLINE LZ_WEIGHTS __attribute__((always_inline)) inline

constexpr int kBytes = 8192;  // bytes of weights: with the input a fifth of the L1 cache
constexpr int kChains = 16;   // independent sums: products take up to six cycles, two begin in each
constexpr int kUnrolled = 8;  // vectors of weights per iteration, so that every sum stays in its register

// The operands of one thread. The values do not matter, but none is subnormal or infinite.
struct Operands {
  Operands() {
    std::fill_n(codes, kBytes, uint8_t{0x31});
    std::fill_n(floats, 1024, 1.0f);
    std::fill_n(pairs, 1024, 0x3f803f80u);
    std::fill_n(quads, 256, 0x01020304u);
    std::fill_n(table, 128, uint8_t{0x3f});
  }
  alignas(64) uint8_t codes[kBytes];
  alignas(64) float floats[1024];
  alignas(64) uint32_t pairs[1024], quads[256];  // pairs of bf16, quads of int8
  alignas(64) uint8_t table[128];
};

// Each Multiply adds the products of vector `i` of the weights with the matching values of the input to sums; c: which
// one of kUnrolled it is.
struct HalfBytesBF16 {
  static constexpr int kWeights = 128;
  using Sum = __m512;
  LZ_WEIGHTS_INLINE static void Multiply(const Operands& of, __m512i codes, int64_t i, int c, Sum* sums) {
    const __m512i table = _mm512_load_si512(of.table);
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const __m512i w = _mm512_permutexvar_epi16(s ? _mm512_srli_epi16(codes, unsigned(4 * s)) : codes, table);
      const __m512i x = _mm512_set1_epi32(int(of.pairs[i * 4 + s]));
      sums[(c * 4 + s) % kChains] = _mm512_dpbf16_ps(sums[(c * 4 + s) % kChains], (__m512bh)w, (__m512bh)x);
    }
  }
};
struct HalfBytesFloat {
  static constexpr int kWeights = 128;
  using Sum = __m512;
  LZ_WEIGHTS_INLINE static void Multiply(const Operands& of, __m512i codes, int64_t i, int c, Sum* sums) {
    const __m512 table = _mm512_load_ps(of.floats);
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) {
      const __m512 w = _mm512_permutexvar_ps(s ? _mm512_srli_epi32(codes, unsigned(4 * s)) : codes, table);
      Sum& sum = sums[(c * 8 + s) % kChains];
      sum = _mm512_fmadd_ps(w, _mm512_set1_ps(of.floats[i * 8 + s]), sum);
    }
  }
};
struct HalfBytesInt8 {
  static constexpr int kWeights = 128;
  using Sum = __m512i;
  LZ_WEIGHTS_INLINE static void Multiply(const Operands& of, __m512i codes, int64_t i, int c, Sum* sums) {
    const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const __m512i w = _mm512_and_si512(s ? _mm512_srli_epi16(codes, 4) : codes, mask);
      const __m512i x = _mm512_set1_epi32(int(of.quads[i * 2 + s]));
      sums[(c * 2 + s) % kChains] = _mm512_dpbusd_epi32(sums[(c * 2 + s) % kChains], w, x);
    }
  }
};
struct BytesInt8 {
  static constexpr int kWeights = 64;
  using Sum = __m512i;
  LZ_WEIGHTS_INLINE static void Multiply(const Operands& of, __m512i codes, int64_t i, int c, Sum* sums) {
    const __m512i x = _mm512_set1_epi32(int(of.quads[i]));
    sums[c % kChains] = _mm512_dpbusd_epi32(sums[c % kChains], codes, x);
  }
};
// Both bytes of a bf16 by look-up in 128 bytes; kIntegers: of w or ~w, whichever is not negative.
template <bool kIntegers>
struct BytesBF16 {
  static constexpr int kWeights = 64;
  using Sum = __m512;
  LZ_WEIGHTS_INLINE static void Words(const Operands& of, __m512i codes, __m512i* w) {
    const __m512i lower = _mm512_load_si512(of.table), upper = _mm512_load_si512(of.table + 64);
    __m512i index = codes;
    if (kIntegers) index = _mm512_max_epi8(codes, _mm512_ternarylogic_epi32(codes, codes, codes, 0x55));
    const __m512i low = _mm512_permutex2var_epi8(lower, index, upper);
    const __m512i both = _mm512_permutex2var_epi8(upper, index, lower);
    const __m512i high = _mm512_ternarylogic_epi32(both, codes, _mm512_set1_epi8(char(0x80)), 0xf8);
    w[0] = _mm512_unpacklo_epi8(low, high), w[1] = _mm512_unpackhi_epi8(low, high);
  }
  LZ_WEIGHTS_INLINE static void Multiply(const Operands& of, __m512i codes, int64_t i, int c, Sum* sums) {
    __m512i w[2];
    Words(of, codes, w);
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const __m512i x = _mm512_load_si512(of.pairs + (i * 2 + s) % 64 * 16);
      sums[(c * 2 + s) % kChains] = _mm512_dpbf16_ps(sums[(c * 2 + s) % kChains], (__m512bh)w[s], (__m512bh)x);
    }
  }
};
struct IntegersFloat {
  static constexpr int kWeights = 64;
  using Sum = __m512;
  LZ_WEIGHTS_INLINE static void Multiply(const Operands& of, __m512i, int64_t i, int c, Sum* sums) {
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const auto* at = reinterpret_cast<const __m128i*>(of.codes + i * 64 + s * 16);
      const __m512 w = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(at)));
      const __m512 x = _mm512_load_ps(of.floats + (i * 4 + s) % 64 * 16);
      sums[(c * 4 + s) % kChains] = _mm512_fmadd_ps(w, x, sums[(c * 4 + s) % kChains]);
    }
  }
};
struct FloatBytesFloat {
  static constexpr int kWeights = 64;
  using Sum = __m512;
  LZ_WEIGHTS_INLINE static void Multiply(const Operands& of, __m512i codes, int64_t i, int c, Sum* sums) {
    __m512i words[2];
    BytesBF16<false>::Words(of, codes, words);
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000));
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const __m512i w = s % 2 ? _mm512_and_si512(words[s / 2], upper) : _mm512_slli_epi32(words[s / 2], 16);
      const __m512 x = _mm512_load_ps(of.floats + (i * 4 + s) % 64 * 16);
      sums[(c * 4 + s) % kChains] = _mm512_fmadd_ps((__m512)w, x, sums[(c * 4 + s) % kChains]);
    }
  }
};
// No conversion: dot products of registers.
struct PlainBF16 {
  static constexpr int kWeights = 512;
  using Sum = __m512;
  LZ_WEIGHTS_INLINE static void Multiply(const Operands&, __m512i codes, int64_t, int, Sum* sums) {
#pragma GCC unroll 16
    for (int s = 0; s < 16; ++s)
      sums[s % kChains] = _mm512_dpbf16_ps(sums[s % kChains], (__m512bh)codes, (__m512bh)codes);
  }
};

LZ_WEIGHTS_INLINE float Last(__m512 v) { return _mm512_reduce_add_ps(v); }
LZ_WEIGHTS_INLINE float Last(__m512i v) { return float(_mm512_reduce_add_epi32(v)); }

template <class Loop>
LZ_WEIGHTS int64_t Run(int64_t rounds, float* last) {
  Operands of;
  asm("" : : "r"(&of) : "memory");  // hides the contents from the compiler
  typename Loop::Sum sums[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) sums[c] = typename Loop::Sum{};
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t from = 0; from < kBytes / 64; from += kUnrolled) {
#pragma GCC unroll 8
      for (int c = 0; c < kUnrolled; ++c) {
        __m512i codes = _mm512_load_si512(of.codes + (from + c) * 64);
        asm("" : "+v"(codes));  // otherwise a compiler loads them again for each use
        Loop::Multiply(of, codes, from + c, c, sums);
      }
    }
  }
  *last = 0;
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) *last += Last(sums[c]);
  return rounds * (kBytes / 64) * Loop::kWeights;
}

using RunLoop = int64_t (*)(int64_t, float*);
RunLoop LoopFor(StoredAs stored, MultipliedAs as) {
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vbmi") ||
      !__builtin_cpu_supports("avx512vnni"))
    return nullptr;
  const bool bf16 = as == MultipliedAs::kBF16, int8 = as == MultipliedAs::kInt8;
  switch (stored) {
    case StoredAs::kNumbers: return bf16 ? &Run<PlainBF16> : nullptr;
    case StoredAs::kHalfBytes: return bf16 ? &Run<HalfBytesBF16> : int8 ? &Run<HalfBytesInt8> : &Run<HalfBytesFloat>;
    case StoredAs::kIntegers: return bf16 ? &Run<BytesBF16<true>> : int8 ? &Run<BytesInt8> : &Run<IntegersFloat>;
    default: return bf16 ? &Run<BytesBF16<false>> : int8 ? nullptr : &Run<FloatBytesFloat>;
  }
}
#else
using RunLoop = int64_t (*)(int64_t, float*);
RunLoop LoopFor(StoredAs, MultipliedAs) { return nullptr; }
#endif

}  // namespace

int64_t MultiplyWeights(StoredAs stored, MultipliedAs as, int64_t rounds, const lz_parallel& parallel) {
  struct Job {
    RunLoop loop;
    int64_t rounds;
    std::atomic<int64_t> done{0};
    std::atomic<float> last{0};
  } job{LoopFor(stored, as), rounds};
  if (job.loop == nullptr) return 0;
  const auto body = [](int64_t begin, int64_t end, void* context) {
    Job& job = *static_cast<Job*>(context);
    for (int64_t i = begin; i < end; ++i) {
      float last = 0;
      job.done.fetch_add(job.loop(job.rounds, &last), std::memory_order_relaxed);
      job.last.store(last, std::memory_order_relaxed);
    }
  };
  parallel.run(parallel.self, 0, std::max(1, parallel.num_threads), 1, body, &job);
  return std::isnan(job.last.load()) ? 0 : job.done.load();
}

}  // namespace lz::roofline
