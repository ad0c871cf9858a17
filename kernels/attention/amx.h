// Products of attention for many query rows in bf16 with AMX tiles: FP32 sums of exact products of queries and keys,
// denormals as zero; weights are the sum of two bf16, so that they keep 16 bits. Include only from files that Highway
// compiles per target (after kernels/simd.h).
#if defined(LZ_KERNELS_ATTENTION_AMX_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ATTENTION_AMX_H_
#undef LZ_KERNELS_ATTENTION_AMX_H_
#else
#define LZ_KERNELS_ATTENTION_AMX_H_
#endif

#include <algorithm>
#include <optional>
#include <type_traits>

#include "kernels/attention/softmax.h"
#include "platform/device.h"
#if HWY_ARCH_X86_64
#include "kernels/gemm/x86_amx.h"
#include "kernels/gemm/x86_pack.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::attn {

// True if tiles of `T` on this CPU are multiplied with AMX.
template <class T>
bool HasAmx() {
  static const bool has = HostCpu().fact(DeviceField::kIsa) & kIsaAmxBf16;
  return std::is_same_v<T, BF16> && HWY_ARCH_X86_64 && kL == 16 && has;
}

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
using x86::Tiles;
static_assert(kBlock * sizeof(BF16) == kPackedBlock * sizeof(float));  // packed keys and values fill the same scratch

// Configures this thread's AMX tiles during its life.
class AmxScope {
 public:
  explicit AmxScope(bool used) {
    if (used) tiles_.emplace(x86::kWholeRowBytes, x86::kWholeRows);
  }

 private:
  std::optional<Tiles> tiles_;
};

// Calls f<R, C>(r, c) over [0, rows) x [0, columns), both multiples of 16, in steps of up to 32.
template <class F>
HWY_INLINE void ForTiles(int64_t rows, int64_t columns, const F& f) {
  for (int64_t c = 0; c < columns; c += 32) {
    for (int64_t r = 0; r < rows; r += 32) {
      if (rows - r > 16) {
        columns - c > 16 ? f.template operator()<2, 2>(r, c) : f.template operator()<2, 1>(r, c);
      } else {
        columns - c > 16 ? f.template operator()<1, 2>(r, c) : f.template operator()<1, 1>(r, c);
      }
    }
  }
}

inline int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Unscaled queries, [rows in 16s][dq], followed by zeros.
inline void AmxStart(Tile<BF16>& t) {
  const Walk<BF16>& w = *t.walk;
  auto* q = reinterpret_cast<uint16_t*>(t.q);
  const int64_t rows = RoundUp(t.rows, 16), d = w.p.d_qk;
  std::fill_n(q, rows * w.dq, uint16_t{0});
  for (int64_t r = 0; r < t.rows; ++r) {
    const Row& row = t.row[r];
    const auto* from = reinterpret_cast<const uint16_t*>(w.p.q.data) + row.batch * w.p.q.outer + row.pos * w.p.q.seq +
                       row.head * w.p.q.head;
    std::copy_n(from, d, q + r * w.dq);
  }
  std::fill_n(t.o, rows * w.dv, 0.0f);
}

// s[r][j] = scale * q[r] . k[j] for keys [0, n).
inline void AmxLogits(const Tile<BF16>& t, int64_t n) {
  const Walk<BF16>& w = *t.walk;
  auto* keys = reinterpret_cast<uint32_t*>(w.kt);  // micro-panels of 16 keys, [dq / 2][16] each
  for (int64_t j = 0; j < n; j += 16) {
    x86::PackMicroPanel(w.k + j, std::min<int64_t>(16, n - j), w.p.d_qk, keys + j * w.dq / 2);
  }
  constexpr int64_t kRowBytes = kBlock * sizeof(float);
  const int64_t steps = (w.p.d_qk + 31) / 32;
  ForTiles(RoundUp(t.rows, 16), RoundUp(n, 16), [&]<int R, int C>(int64_t r, int64_t j) HWY_ATTR {
    const x86::Sums s = {w.s + r * kBlock + j, kRowBytes, 64};
    x86::ZeroSums<R, C>(s);
    x86::AddProducts<R, C>({reinterpret_cast<const uint16_t*>(t.q) + r * w.dq, w.dq * 2, 64, 32 * w.dq},
                           {keys + j * w.dq / 2, 64, 1024, 32 * w.dq}, steps);
    x86::StoreSums<R, C>(s);
  });
  const auto scale = hn::Set(kD, w.p.scale);
  for (int64_t r = 0; r < t.rows; ++r) {
    float* s = w.s + r * kBlock;
    for (int64_t j = 0; j < n; j += kL) hn::Store(hn::Mul(scale, hn::Load(kD, s + j)), kD, s + j);
  }
}

// The words of 32 values; zeros past n.
HWY_INLINE hn::Vec<DU> LoadWords(const BF16* p, int64_t n) {
  if (n >= kPair) return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(p));
  BF16 buffer[kPair] = {};
  std::memcpy(buffer, p, size_t(n) * sizeof(BF16));
  return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(buffer));
}

// Weights of one row as two bf16 each, whose sum has 16 bits, in place of every 32 floats: 16 words of high halves,
// then 16 of low ones; word i has keys i and i + 16. Zeros past n.
HWY_INLINE void SplitWeights(float* s, int64_t n) {
  const auto upper = hn::Set(DU(), 0xffff0000u);
  const auto pair = [&](V first, V second) HWY_ATTR {
    return hn::Or(hn::ShiftRight<16>(hn::BitCast(DU(), first)), hn::And(hn::BitCast(DU(), second), upper));
  };
  const auto low = [&](V v) HWY_ATTR { return hn::Sub(v, hn::BitCast(kD, hn::And(hn::BitCast(DU(), v), upper))); };
  for (int64_t j = 0; j < n; j += 32) {
    const int64_t left = n - j;
    const V a = left >= 16 ? hn::Load(kD, s + j) : hn::MaskedLoad(hn::FirstN(kD, size_t(left)), kD, s + j);
    const V b = left >= 32   ? hn::Load(kD, s + j + 16)
                : left <= 16 ? hn::Zero(kD)
                             : hn::MaskedLoad(hn::FirstN(kD, size_t(left - 16)), kD, s + j + 16);
    auto* out = reinterpret_cast<uint32_t*>(s + j);
    hn::Store(pair(a, b), DU(), out);
    hn::Store(pair(low(a), low(b)), DU(), out + 16);
  }
}

// o = alpha o + weights [rows][n] times values [n][d_v], in pair order.
inline void AmxValues(const Tile<BF16>& t, int64_t n) {
  const Walk<BF16>& w = *t.walk;
  auto* values = reinterpret_cast<uint32_t*>(w.vf);  // [32 keys][d_v / 16][16 pairs][16]: keys i and i + 16 are a pair
  const auto upper = hn::Set(DU(), 0xffff0000u), lower = hn::Set(DU(), 0xffffu);
  const int64_t width = RoundUp(w.p.d_v, kPair), step = width * 16;
  const auto words = [&](int64_t key, int64_t c)
                         HWY_ATTR { return key < n ? LoadWords(w.v[key] + c, w.p.d_v - c) : hn::Zero(DU()); };
  for (int64_t j = 0; j < n; j += 32) {
    for (int64_t i = 0; i < 16; ++i) {
      for (int64_t c = 0; c < width; c += kPair) {
        const auto a = words(j + i, c), b = words(j + i + 16, c);
        uint32_t* out = values + j / 32 * step + c * 16 + i * 16;
        hn::Store(hn::Or(hn::And(a, lower), hn::ShiftLeft<16>(b)), DU(), out);
        hn::Store(hn::Or(hn::ShiftRight<16>(a), hn::And(b, upper)), DU(), out + 256);
      }
    }
  }
  for (int64_t r = 0; r < t.rows; ++r) {
    SplitWeights(w.s + r * kBlock, n);
    if (t.alpha[r] == 1) continue;
    const auto alpha = hn::Set(kD, t.alpha[r]);
    float* o = t.o + r * w.dv;
    for (int64_t c = 0; c < width; c += kL) hn::Store(hn::Mul(alpha, hn::Load(kD, o + c)), kD, o + c);
  }
  constexpr int64_t kRowBytes = kBlock * sizeof(float);
  ForTiles(RoundUp(t.rows, 16), width, [&]<int R, int C>(int64_t r, int64_t c) HWY_ATTR {
    const float* weights = w.s + r * kBlock;
    const x86::Sums o = {t.o + r * w.dv + c, w.dv * 4, 64};
    const x86::Operand b = {values + c * 16, 64, step * 4, 1024};
    x86::LoadSums<R, C>(o);
    x86::AddProducts<R, C>({weights, kRowBytes, 128, 16 * kRowBytes}, b, (n + 31) / 32);
    x86::AddProducts<R, C>({weights + 16, kRowBytes, 128, 16 * kRowBytes}, b, (n + 31) / 32);
    x86::StoreSums<R, C>(o);
  });
}
#else
class AmxScope {
 public:
  explicit AmxScope(bool) {}
};
inline void AmxStart(Tile<BF16>&) {}
inline void AmxLogits(const Tile<BF16>&, int64_t) {}
inline void AmxValues(const Tile<BF16>&, int64_t) {}
#endif

}  // namespace lz::HWY_NAMESPACE::attn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
