// The SIMD parts of a hit: comparisons with the range of an inline cache, the class of a request, a 128-byte hash.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "pipeline/cache_hot.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "pipeline/cache.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: facts are 32 numbers.
using D = hn::CappedTag<int32_t, 16>;

constexpr size_t kLanes = HWY_MAX_BYTES / 4 < 16 ? HWY_MAX_BYTES / 4 : 16;
static_assert(kFactSlots % kLanes == 0);

const Plan* LookupInline(const InlineCache& site, const Facts& facts, const Epochs& epochs) {
  const D d;
  const bool current = site.generation == epochs.Generation();
  auto outside = hn::Zero(d);  // non-zero where clamping to the range changes a fact
  for (size_t i = 0; i < kFactSlots; i += kLanes) {
    const auto v = hn::Load(d, facts.v + i);
    const auto clamped = hn::Min(hn::Max(v, hn::Load(d, site.lo.v + i)), hn::Load(d, site.hi.v + i));
    outside = hn::Or(outside, hn::Xor(clamped, v));
  }
  const bool inside = hn::AllTrue(d, hn::Eq(outside, hn::Zero(d)));
  return (inside & current) ? site.plan : nullptr;
}

// The class of each range slot is minus the number of thresholds above its value.
void Classify(const Classifier& classifier, const Facts& facts, Facts* key) {
  const D d;
  const int32_t* thresholds = classifier.thresholds();
  const int n = classifier.num_thresholds();
  for (size_t i = 0; i < kFactSlots; i += kLanes) {
    const auto v = hn::Load(d, facts.v + i);
    auto ahead = hn::Zero(d);
    for (int t = 0; t < n; ++t) {
      const auto cut = hn::LoadU(d, thresholds + size_t(t) * kFactSlots + i);
#if HWY_TARGET <= HWY_AVX3
      ahead = hn::IfThenElse(hn::Gt(cut, v), hn::Sub(ahead, hn::Set(d, 1)), ahead);  // one masked subtraction
#else
      ahead = hn::Add(ahead, hn::VecFromMask(d, hn::Gt(cut, v)));
#endif
    }
    const auto exact = hn::LoadU(d, classifier.is_exact() + i);
    hn::Store(hn::Or(hn::And(exact, v), hn::AndNot(exact, ahead)), d, key->v + i);
  }
}

// NH (Black et al. 1999, UMAC): the sum of products of pairs of keyed 32-bit words, all of them independent; then a
// finalizer that multiplies and shifts. Collisions cost a comparison, never a wrong hit.
alignas(64) constexpr uint32_t kHashKey[kFactSlots] = {
    0x9e3779b9, 0x85ebca6b, 0xc2b2ae35, 0x27d4eb2f, 0x165667b1, 0xd3a2646c, 0xfd7046c5, 0xb55a4f09,
    0x8f14e45f, 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
    0x5be0cd19, 0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7};

// In halves, because the intrinsic for eight lanes adds signed numbers in C.
template <class D64, class V>
uint64_t SumOf(D64 d, V v) {
  if constexpr (hn::MaxLanes(D64()) > 2) {
    const hn::Half<D64> half;
    return SumOf(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return hn::GetLane(hn::SumOfLanes(d, v));
  }
}

uint64_t Hash(const Facts& key) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<D>> d64;
  const hn::RebindToUnsigned<D> d32;
  auto sum = hn::Zero(d64);
  for (size_t i = 0; i < kFactSlots; i += kLanes) {
    const auto words = hn::Load(d32, reinterpret_cast<const uint32_t*>(key.v) + i);
    const auto keyed = hn::Add(words, hn::Load(d32, kHashKey + i));
    const auto odd = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, keyed)));
    sum = hn::Add(sum, hn::MulEven(keyed, odd));
  }
  uint64_t h = SumOf(d64, sum);
  h ^= h >> 32;
  h *= 0x9fb21c651e98df25u;
  return h ^ h >> 29;
}

bool Equal(const Facts& a, const Facts& b) {
  const D d;
  auto differ = hn::Zero(d);
  for (size_t i = 0; i < kFactSlots; i += kLanes) {
    differ = hn::Or(differ, hn::Xor(hn::Load(d, a.v + i), hn::Load(d, b.v + i)));
  }
  return hn::AllTrue(d, hn::Eq(differ, hn::Zero(d)));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(LookupInline);
HWY_EXPORT(Classify);
HWY_EXPORT(Hash);
HWY_EXPORT(Equal);

HotCode Choose() {
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return {HWY_DYNAMIC_DISPATCH(LookupInline), HWY_DYNAMIC_DISPATCH(Classify), HWY_DYNAMIC_DISPATCH(Hash),
          HWY_DYNAMIC_DISPATCH(Equal)};
}
}  // namespace

const HotCode kHotCode = Choose();
}  // namespace lz
#endif  // HWY_ONCE
