#include "verify/fill.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "core/view.h"
#include "verify/generator.h"

namespace lz::verify {
namespace {

double F8ToDouble(DType type, int code) {
  if (type == DType::kF8E4M3) return F8E4M3ToFloat(uint8_t(code));
  if (type == DType::kF8E5M2) return F8E5M2ToFloat(uint8_t(code));
  return F8E8M0ToFloat(uint8_t(code));
}

// The encodings of a float8 type in the order of their values, and a NaN.
struct F8Codes {
  explicit F8Codes(DType type) {
    for (int code = 0; code < 256; ++code) {
      const double value = F8ToDouble(type, code);
      if (std::isnan(value)) {
        nan = uint8_t(code);
      } else {
        values.emplace_back(value, uint8_t(code));
      }
    }
    std::stable_sort(values.begin(), values.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  std::vector<std::pair<double, uint8_t>> values;
  uint8_t nan = 0;
};

uint8_t NearestF8(DType type, double value) {
  static const F8Codes e4m3(DType::kF8E4M3), e5m2(DType::kF8E5M2), e8m0(DType::kF8E8M0);
  const F8Codes& codes = type == DType::kF8E4M3 ? e4m3 : type == DType::kF8E5M2 ? e5m2 : e8m0;
  if (std::isnan(value)) return codes.nan;
  const auto below = [](const auto& entry, double v) { return entry.first < v; };
  auto at = std::lower_bound(codes.values.begin(), codes.values.end(), value, below);
  if (at == codes.values.end()) return codes.values.back().second;
  if (at != codes.values.begin() && value - std::prev(at)->first < at->first - value) --at;
  return at->second;
}

void FillProbs(Generator& generator, OwnedTensor* tensor) {
  const lz_tensor t = tensor->tensor();
  const int64_t row = tensor->shape().empty() ? 1 : tensor->shape().back();
  std::vector<double> weights(static_cast<size_t>(row));
  for (int64_t begin = 0; begin < tensor->numel(); begin += row) {
    double sum = 0;
    for (double& w : weights) sum += w = std::exp(generator.Normal());
    for (int64_t i = 0; i < row; ++i) StoreValue(t, tensor->ElementOffset(begin + i), weights[size_t(i)] / sum);
  }
}

// Integers from lo on, distinct within a row: if [lo, hi) has too few, up to lo + row.
void FillDistinct(Generator& generator, const Filling& f, OwnedTensor* tensor) {
  const lz_tensor t = tensor->tensor();
  const int64_t row = tensor->shape().empty() ? 1 : tensor->shape().back(), lo = int64_t(f.lo);
  std::vector<int64_t> numbers(size_t(std::max(int64_t(f.hi) - lo, row)));
  std::iota(numbers.begin(), numbers.end(), lo);
  for (int64_t begin = 0; begin < tensor->numel(); begin += row) {
    for (int64_t i = 0; i < row; ++i) {
      const size_t left = numbers.size() - size_t(i);
      std::swap(numbers[size_t(i)], numbers[size_t(i) + size_t(generator.Next() % left)]);
      StoreValue(t, tensor->ElementOffset(begin + i), double(numbers[size_t(i)]));
    }
  }
}

double Draw(Generator& generator, const Filling& f) {
  switch (f.distribution) {
    case Distribution::kUniform: return f.lo + (f.hi - f.lo) * generator.Uniform();
    case Distribution::kInt: return std::floor(f.lo + (f.hi - f.lo) * generator.Uniform());
    default: return generator.Normal();
  }
}

}  // namespace

uint64_t HashText(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ uint8_t(c)) * 0x100000001b3u;
  return hash;
}

void StoreValue(const lz_tensor& t, int64_t offset, double value) {
  const DType type = DTypeOf(t);
  const View view(t);
  switch (type) {
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E8M0: view.data<uint8_t>()[offset] = NearestF8(type, value); return;
    case DType::kI64:
    case DType::kI32:
    case DType::kI16:
    case DType::kI8:
    case DType::kU8:
    case DType::kBool: view.StoreInt(offset, int64_t(value)); return;
    case DType::kF64:
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: view.Store(offset, value); return;
    default: return;
  }
}

void Fill(const Filling& f, uint64_t seed, OwnedTensor* tensor) {
  Generator generator(seed);
  const lz_tensor t = tensor->tensor();
  if (f.distribution == Distribution::kProbs) {
    FillProbs(generator, tensor);
  } else if (f.distribution == Distribution::kDistinct) {
    FillDistinct(generator, f, tensor);
  } else {
    tensor->ForEach([&](int64_t i, int64_t offset) {
      StoreValue(t, offset, f.distribution == Distribution::kExplicit ? f.values[size_t(i)] : Draw(generator, f));
    });
  }
  if (f.nan && tensor->numel() > 0) {
    const int64_t at = int64_t(generator.Next() % uint64_t(tensor->numel()));
    StoreValue(t, tensor->ElementOffset(at), std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace lz::verify
