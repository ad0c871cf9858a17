// hwy.kv.rope_append_paged does what hwy.posenc.rope and the append kernels do one after the other, bit for bit, for
// each instruction set.
#include <gtest/gtest.h>

#include "ops/kv/rope_append_paged.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_kv_rope_append_paged_hwy, kernels_posenc_rope_hwy, kernels_kv_append_paged_hwy,
    kernels_kv_append_paged_cpu;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

constexpr int64_t kN = 7, kH = 3, kHKV = 2, kT = 20, kBlocks = 3, kSize = 4;

struct Case {
  int64_t d = 64, r = 64, width = 64, d_v = 32;
  bool interleaved = false;
  DType type = DType::kBF16, table = DType::kF32, cache = DType::kBF16;
};

// Caches and rotated queries, by one kernel or by three.
class Call {
 public:
  explicit Call(const Case& c)
      : c_(c),
        query_(c.type, {kN, kH, c.d}, 3),
        key_(c.type, {kN, kHKV, c.d}, 3),
        value_(c.type, {kN, kHKV, c.d_v}, 1),
        cos_(c.table, {kT, c.width}, 1),
        sin_(c.table, {kT, c.width}),
        ids_(DType::kI32, {kN}),
        slots_(DType::kI64, {kN}),
        k_scale_(DType::kF32, {kHKV}),
        v_scale_(DType::kF32, {1}) {
    query_.FillNormal(1), key_.FillNormal(2), value_.FillNormal(3), cos_.FillNormal(4), sin_.FillNormal(5);
    ids_.Set({19, 0, 3, 3, 7, 11, 12});
    slots_.Set({5, -1, 0, 11, 10, 2, -3});
    k_scale_.Set({0.03, 0.02}), v_scale_.Set({0.05});
  }

  std::vector<std::vector<char>> Together() {
    Caches caches(c_);
    Array out(c_.type, {kN, kH, c_.d});
    const bool coded = ByteSize(c_.cache) == 1;
    EXPECT_EQ(
        Launch(kernels::kernels_kv_rope_append_paged_hwy[coded ? 1 : 0],
               {&query_, &key_, &value_, &cos_, &sin_, &caches.keys, &caches.values, &slots_, &ids_,
                coded ? &k_scale_ : nullptr, coded ? &v_scale_ : nullptr, &out},
               {Scalar(c_.interleaved), Scalar(c_.r)}, {kN, kH, c_.d, kHKV, c_.d_v, kT, c_.width, kBlocks, kSize}),
        0);
    return {caches.keys.bytes(), caches.values.bytes(), out.bytes()};
  }
  std::vector<std::vector<char>> OneByOne() {
    Caches caches(c_);
    Array out(c_.type, {kN, kH, c_.d}), turned(c_.type, {kN, kHKV, c_.d});
    Turn(query_, kH, &out), Turn(key_, kHKV, &turned);
    const bool coded = ByteSize(c_.cache) == 1;
    EXPECT_EQ(Launch(coded ? kernels::kernels_kv_append_paged_hwy[0] : kernels::kernels_kv_append_paged_cpu[0],
                     {&caches.keys, &caches.values, &turned, &value_, &slots_, coded ? &k_scale_ : nullptr,
                      coded ? &v_scale_ : nullptr},
                     {}, {kBlocks, kSize, kHKV, c_.d, c_.d_v, kN}),
              0);
    return {caches.keys.bytes(), caches.values.bytes(), out.bytes()};
  }

 private:
  struct Caches {
    explicit Caches(const Case& c)
        : keys(c.cache, {kBlocks, kSize, kHKV, c.d}, 2), values(c.cache, {kBlocks, kSize, kHKV, c.d_v}) {}
    Array keys, values;
  };
  // As [1, n, h, d].
  void Turn(Array& x, int64_t heads, Array* out) {
    const auto batched = [](Array& a) {
      Array b(a.type(), {1, a.shape()[0], a.shape()[1], a.shape()[2]});
      b.Set(a.Values());
      return b;
    };
    Array from = batched(x), to(c_.type, from.shape());
    EXPECT_EQ(Launch(kernels::kernels_posenc_rope_hwy[0], {&from, &cos_, &sin_, &ids_, &to},
                     {Scalar(c_.interleaved), Scalar(false), Scalar(c_.r)}, {1, kN, heads, c_.d}),
              0);
    out->Set(to.Values());
  }

  Case c_;
  Array query_, key_, value_, cos_, sin_, ids_, slots_, k_scale_, v_scale_;
};

TEST(HwyRopeAppendPaged, IsRopeThenAppend) {
  ForEachTarget([] {
    for (const DType type : kTestTypes) {
      for (const DType cache : {type, DType::kI8, DType::kF8E4M3, DType::kF8E5M2}) {
        for (const bool interleaved : {false, true}) {
          for (const Case& sizes : {Case{}, Case{.d = 80, .r = 32, .width = 16, .d_v = 80},
                                    Case{.d = 35, .r = 34, .width = 34, .d_v = 1}}) {
            Case c = sizes;
            c.interleaved = interleaved, c.type = type, c.cache = cache;
            Call call(c);
            EXPECT_EQ(call.Together(), call.OneByOne()) << Info(type).name << " " << Info(cache).name << " " << c.d;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace lz
