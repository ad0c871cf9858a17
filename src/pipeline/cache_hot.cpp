// The SIMD parts of a hit: 32 compares for a box, 32 x thresholds for a class, a 128-byte hash and compare.
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

bool InBox(const Box& box, const Facts& facts) {
  const D d;
  auto outside = hn::Zero(d);
  for (size_t i = 0; i < kFactSlots; i += hn::Lanes(d)) {
    const auto v = hn::Load(d, facts.v + i);
    const auto below = hn::VecFromMask(d, hn::Gt(hn::Load(d, box.lo.v + i), v));
    const auto above = hn::VecFromMask(d, hn::Gt(v, hn::Load(d, box.hi.v + i)));
    outside = hn::Or(outside, hn::Or(below, above));
  }
  return hn::AllTrue(d, hn::Eq(outside, hn::Zero(d)));
}

void Classify(const Classifier& classifier, const Facts& facts, Facts* key) {
  const D d;
  const int32_t* thresholds = classifier.thresholds();
  const int n = classifier.num_thresholds();
  for (size_t i = 0; i < kFactSlots; i += hn::Lanes(d)) {
    const auto v = hn::Load(d, facts.v + i);
    auto ahead = hn::Zero(d);  // minus the number of thresholds above v
    for (int t = 0; t < n; ++t) {
      const auto cut = hn::LoadU(d, thresholds + size_t(t) * kFactSlots + i);
      ahead = hn::Add(ahead, hn::VecFromMask(d, hn::Gt(cut, v)));
    }
    const auto exact = hn::LoadU(d, classifier.is_exact() + i);
    hn::Store(hn::Or(hn::And(exact, v), hn::AndNot(exact, ahead)), d, key->v + i);
  }
}

// Multiply and xor over pairs of words; the final mix is the finaliser of MurmurHash3 (public domain constants).
uint64_t Hash(const Facts& key) {
  const uint64_t* w = reinterpret_cast<const uint64_t*>(key.v);
  uint64_t a = 0x9e3779b97f4a7c15u, b = 0xc2b2ae3d27d4eb4fu, c = 0x165667b19e3779f9u, e = 0x27d4eb2f165667c5u;
  for (int i = 0; i < 16; i += 4) {
    a = (a ^ w[i]) * 0xff51afd7ed558ccdu;
    b = (b ^ w[i + 1]) * 0xc4ceb9fe1a85ec53u;
    c = (c ^ w[i + 2]) * 0x87c37b91114253d5u;
    e = (e ^ w[i + 3]) * 0x4cf5ad432745937fu;
  }
  uint64_t h = a ^ (b >> 32 | b << 32) ^ (c >> 17 | c << 47) ^ (e >> 47 | e << 17);
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdu;
  return h ^ h >> 29;
}

bool Equal(const Facts& a, const Facts& b) {
  const D d;
  auto differ = hn::Zero(d);
  for (size_t i = 0; i < kFactSlots; i += hn::Lanes(d)) {
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
HWY_EXPORT(InBox);
HWY_EXPORT(Classify);
HWY_EXPORT(Hash);
HWY_EXPORT(Equal);

HotCode Choose() {
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return {HWY_DYNAMIC_DISPATCH(InBox), HWY_DYNAMIC_DISPATCH(Classify), HWY_DYNAMIC_DISPATCH(Hash),
          HWY_DYNAMIC_DISPATCH(Equal)};
}
const HotCode g_hot = Choose();
}  // namespace

const HotCode& Hot() { return g_hot; }
}  // namespace lz
#endif  // HWY_ONCE
