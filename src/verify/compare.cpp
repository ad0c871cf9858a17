#include "verify/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "core/tensor.h"
#include "core/view.h"
#include "ops/common/sampling_check.h"
#include "verify/numerics.h"

namespace lz::verify {
namespace {

constexpr double kLargestF32 = std::numeric_limits<float>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// |x - r|; 0 for equal infinities, NaN for NaN, infinite if only one of them is finite.
double Distance(double x, double r) {
  if (std::isnan(r) || std::isnan(x)) return std::isnan(r) && std::isnan(x) ? 0 : kInfinity;
  if (std::isinf(r) || std::isinf(x)) return x == r ? 0 : kInfinity;
  return std::fabs(x - r);
}

// The smallest value that is rounded to infinity: half a step above the largest finite one.
double Overflow(DType dtype) {
  switch (dtype) {
    case DType::kF64: return kInfinity;
    case DType::kF16: return 65520;
    case DType::kBF16: return 0x1.ffp127;
    default: return 0x1.ffffffp127;
  }
}

// Keeps the element whose error is the largest fraction of its bound.
class Worst {
 public:
  Worst(DType dtype, OutputReport* report) : overflow_(Overflow(dtype)), report_(report) {}
  // An infinity is not an error if a value within the bound is rounded to it; no value that is not finite is an error
  // if the terms of a sum are as large as `parts`, too large for FP32.
  void Take(int64_t position, double wanted, double got, double bound, double parts = 0) {
    const bool rounded =
        std::isinf(got) && std::signbit(got) == std::signbit(wanted) && std::fabs(wanted) + bound >= overflow_;
    const bool overflows = rounded || (!std::isfinite(got) && std::isfinite(wanted) && parts >= kLargestF32 / 2);
    const double error = overflows ? 0 : Distance(got, wanted);
    const double share = bound > 0 ? error / bound : error > 0 ? kInfinity : 0;
    if (share <= share_) return;
    share_ = share;
    report_->position = position;
    report_->wanted = wanted;
    report_->got = got;
    report_->error = error;
    report_->bound = bound;
    report_->ok = share <= 1;
  }

 private:
  double overflow_;
  OutputReport* report_;
  double share_ = -1;
};

using Values = std::vector<double>;

void Elementwise(const Values& got, const Values& wanted, double tolerance, DType dtype, OutputReport* report) {
  report->measure = "elementwise";
  Worst worst(dtype, report);
  for (size_t i = 0; i < got.size(); ++i) {
    const double scale = std::isfinite(wanted[i]) ? 1 + std::fabs(wanted[i]) : 1;
    worst.Take(int64_t(i), wanted[i], got[i], tolerance * scale);
  }
}

// Below the normal numbers a value has no relative precision: kernels may flush it to zero, and a weight of a few dozen
// may follow.
double Smallest(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 0x1p-1022;
    case DType::kF16: return 0x1p-24;  // one step of its subnormal numbers
    default: return 0x1p-120;
  }
}

double LargestFinite(const Values& values, size_t begin, size_t end) {
  double largest = 0;
  for (size_t i = begin; i < end; ++i) {
    if (std::isfinite(values[i])) largest = std::max(largest, std::fabs(values[i]));
  }
  return largest;
}

// Rows of fewer elements may cancel as a whole by chance; then nothing in them indicates the size of the summands.
constexpr size_t kFew = 8;
constexpr int kDraws = 8;  // of nearby inputs: each may cancel by chance

// f(x + dx), |dx| = relative |x|.
std::vector<Values> Draws(double relative, const Nearby& nearby) {
  std::vector<Values> draws;
  for (int draw = 0; draw < kDraws; ++draw) draws.push_back(nearby(relative, draw));
  return draws;
}

// The largest change of each element for nearby inputs: |f(x + dx) - f(x)|.
Values Spread(const Values& wanted, const std::vector<Values>& draws) {
  Values spread(wanted.size());
  for (const Values& moved : draws) {
    for (size_t i = 0; i < moved.size(); ++i) {
      const double distance = Distance(moved[i], wanted[i]);
      if (std::isfinite(distance)) spread[i] = std::max(spread[i], distance);
    }
  }
  return spread;
}

double Dot(const Values& a, const Values& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

// Subtracts `factor` times `direction`.
void Subtract(double factor, const Values& direction, Values* from) {
  for (size_t i = 0; i < direction.size(); ++i) (*from)[i] -= factor * direction[i];
}

// The reference's rows moved as close to `got` as nearby inputs move them, along two directions: the row's own, and the
// one in which such inputs move the remainder most.
Values Explained(const Values& got, const Values& wanted, size_t row, const std::vector<Values>& draws) {
  Values explained = wanted;
  for (size_t begin = 0; begin < wanted.size(); begin += row) {
    const double largest = LargestFinite(wanted, begin, begin + row);
    if (largest == 0) continue;
    const auto from_wanted = [&](const Values& values) {
      Values change(row);
      for (size_t i = 0; i < row && !values.empty(); ++i) {
        const double difference = (values[begin + i] - wanted[begin + i]) / largest;
        change[i] = std::isfinite(difference) ? difference : 0;
      }
      return change;
    };
    Values left = from_wanted(got), direction(row);
    std::vector<Values> moves;
    for (const Values& draw : draws) moves.push_back(from_wanted(draw));
    for (size_t i = 0; i < row; ++i) {
      direction[i] = std::isfinite(wanted[begin + i]) ? wanted[begin + i] / largest : 0;
    }
    for (int turn = 0; turn < 2; ++turn) {
      const double norm = Dot(direction, direction);
      if (norm == 0) break;
      double reach = 0;
      for (Values& move : moves) {
        const double factor = Dot(move, direction) / norm;
        reach = std::max(reach, std::fabs(factor));
        Subtract(factor, direction, &move);
      }
      const double factor = std::clamp(Dot(left, direction) / norm, -reach, reach);
      Subtract(factor, direction, &left);
      for (size_t i = 0; i < row; ++i) explained[begin + i] += factor * direction[i] * largest;
      direction = *std::ranges::max_element(moves, {}, [](const Values& move) { return Dot(move, move); });
    }
  }
  return explained;
}

void RowMax(const Values& got, const Values& wanted, size_t row, double tolerance, DType dtype, const Nearby& nearby,
            OutputReport* report) {
  const bool few = row < kFew;
  const auto measure = [&](std::string_view name, const Values& reference, const Values& spread) {
    report->measure = name;
    Worst worst(dtype, report);
    for (size_t begin = 0; begin < got.size(); begin += row) {
      const double bound = std::max(tolerance * LargestFinite(reference, begin, begin + row), Smallest(dtype));
      const double moved = few ? LargestFinite(spread, begin, begin + row) : 0;
      for (size_t i = begin; i < begin + row; ++i) {
        worst.Take(int64_t(i), reference[i], got[i], std::max(bound, moved), (few ? moved : spread[i]) / tolerance);
      }
    }
  };
  measure("row max", wanted, Values(wanted.size()));
  if (report->ok || !nearby) return;
  const std::vector<Values> draws = Draws(tolerance, nearby);
  const Values spread = Spread(wanted, draws);
  if (few) return measure("row max or spread", wanted, spread);
  measure("row max or factors", Explained(got, wanted, row, draws), spread);
}

double Norm(const Values& values) {
  double squares = 0;
  for (double v : values) squares += v * v;
  return std::sqrt(squares);
}

double RoundToBF16(double value) {
  if (value == 0) return value;
  const double step = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  return std::nearbyint(value / step) * step;
}

// relF of the finite part; the position is that of the largest error.
void RelativeNorm(const Values& got, const Values& wanted, size_t row, const NumericsBounds& bounds, DType dtype,
                  const Nearby& nearby, OutputReport* report) {
  report->measure = "rel F";
  const auto finite = [&](size_t i) { return std::isfinite(wanted[i]) && std::isfinite(got[i]); };
  Values reference(got.size()), errors(got.size()), rounding(got.size());  // 0 for values that are not finite
  double largest = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!finite(i)) continue;
    reference[i] = wanted[i];
    errors[i] = got[i] - wanted[i];
    if (dtype == DType::kBF16) rounding[i] = RoundToBF16(wanted[i]) - wanted[i];
    if (std::fabs(errors[i]) <= largest) continue;
    largest = std::fabs(errors[i]);
    report->position = int64_t(i);
    report->wanted = wanted[i];
    report->got = got[i];
  }
  const double norm = Norm(reference), error = Norm(errors);
  double bound = dtype == DType::kBF16
                     ? std::max(bounds.bf16.rel_f * norm, Norm(rounding) + 2 * bounds.f32.rel_f * norm)
                     : bounds.f32.rel_f * norm;
  bound = std::max(bound, Smallest(dtype) * std::sqrt(double(got.size())));
  const double relative = dtype == DType::kBF16 ? bounds.bf16.rel_f : bounds.f32.rel_f;
  if (error > bound && nearby && row >= kFew) {
    return RelativeNorm(got, Explained(got, wanted, row, Draws(relative, nearby)), row, bounds, dtype, {}, report);
  }
  if (error > bound && nearby) {
    Values spread = Spread(wanted, Draws(relative, nearby));
    for (size_t i = 0; i < spread.size(); ++i) spread[i] *= finite(i);
    bound = std::max(bound, Norm(spread));
  }
  report->error = norm > 0 ? error / norm : error > 0 ? kInfinity : 0;
  report->bound = norm > 0 ? bound / norm : 0;
  report->ok = error <= bound;
}

void ByClass(const NumericsBounds& bounds, DType dtype, const Values& got, const Values& wanted, size_t row,
             const Nearby& nearby, OutputReport* report) {
  const ErrorBound& bound = dtype == DType::kBF16 ? bounds.bf16 : bounds.f32;
  RowMax(got, wanted, row, bound.row_max, dtype, nearby, report);
  if (!report->ok) return;
  OutputReport norm = *report;
  RelativeNorm(got, wanted, row, bounds, dtype, nearby, &norm);
  if (!norm.ok) *report = std::move(norm);
}

void LogSumExp(const Values& got, const Values& wanted, double bound, DType dtype, OutputReport* report) {
  report->measure = "lse";
  Worst worst(dtype, report);
  for (size_t i = 0; i < got.size(); ++i) {
    const double scale = std::isfinite(wanted[i]) ? std::max(1.0, std::fabs(wanted[i])) : 1;
    worst.Take(int64_t(i), wanted[i], got[i], bound * scale);
  }
}

}  // namespace

int64_t ElementOffset(const lz_tensor& t, int64_t flat) {
  int64_t offset = 0;
  for (int32_t i = t.ndim; i-- > 0;) {
    offset += flat % t.shape[i] * t.strides[i];
    flat /= t.shape[i];
  }
  return offset;
}

std::string OutputReport::Text() const {
  char text[256];
  std::snprintf(text, sizeof(text), "%s: %s at %lld: wanted %.9g, got %.9g, error %.3g of %.3g", output.c_str(),
                measure.c_str(), static_cast<long long>(position), wanted, got, error, bound);
  return text;
}

double BoundOf(const Tolerance& t, DType dtype) {
  switch (dtype) {
    case DType::kF64: return t.f64;
    case DType::kF16: return t.f16;
    case DType::kBF16: return t.bf16;
    default: return t.f32;
  }
}

OutputReport CompareFloats(const Contract& contract, std::string_view numerics, std::string_view output,
                           const lz_tensor& got_tensor, const std::vector<double>& wanted, const Nearby& nearby) {
  OutputReport report;
  report.output = std::string(output);
  const View view(got_tensor);
  Values got(size_t(NumElements(got_tensor)));
  for (size_t i = 0; i < got.size(); ++i) got[i] = view.Load(ElementOffset(got_tensor, int64_t(i)));
  if (got.empty()) return report;
  const DType dtype = view.dtype();
  const size_t row = got_tensor.ndim > 0 ? size_t(got_tensor.shape[got_tensor.ndim - 1]) : 1;
  const NumericsBounds* bounds = FindNumerics(numerics);
  if (bounds && (dtype == DType::kF32 || dtype == DType::kBF16)) {
    if (output == "lse") {
      LogSumExp(got, wanted, bounds->lse, dtype, &report);
    } else {
      ByClass(*bounds, dtype, got, wanted, row, nearby, &report);
    }
    return report;
  }
  const double tolerance = BoundOf(contract.tolerance, dtype);
  if (contract.tolerance.compare == Compare::kRowMax) {
    RowMax(got, wanted, row, tolerance, dtype, nearby, &report);
  } else {
    Elementwise(got, wanted, tolerance, dtype, &report);
  }
  return report;
}

OutputReport CompareExact(std::string_view output, const lz_tensor& got, const lz_tensor& wanted) {
  OutputReport report;
  report.output = std::string(output);
  report.measure = "exact";
  const View x(got), r(wanted);
  const size_t size = size_t(ByteSize(x.dtype()));
  for (int64_t i = 0; i < NumElements(got); ++i) {
    const int64_t at = ElementOffset(got, i), from = ElementOffset(wanted, i);
    if (std::memcmp(x.data<char>() + at * int64_t(size), r.data<char>() + from * int64_t(size), size) == 0) continue;
    if (std::isnan(x.Load(at)) && std::isnan(r.Load(from))) continue;
    report.ok = false;
    report.position = i;
    report.got = x.Load(at);
    report.wanted = r.Load(from);
    report.error = 1;
    return report;
  }
  return report;
}

OutputReport CompareTokens(const Request& r) {
  const Contract& contract = r.op->contract();
  OutputReport report;
  report.output = std::string(contract.outputs[0].name);
  report.measure = "token";
  lz_kernel_args args{};
  args.size = sizeof(args);
  args.tensors = r.tensors.data();
  args.scalars = r.scalars.data();
  args.axes = r.axes();
  const double bound = BoundOf(contract.tolerance, DTypeOf(r.tensors[0]));
  for (int64_t row = 0; row < sampling::NumSampledRows(contract, args); ++row) {
    if (sampling::RowAgrees(contract, args, row, bound)) continue;
    report.ok = false;
    report.position = row;
    report.error = 1;
    report.bound = bound;
    const lz_tensor& out = r.tensors[r.op->num_inputs()];
    report.got = View(out).Load(ElementOffset(out, row));
    report.wanted = std::nan("");
    return report;
  }
  return report;
}

}  // namespace lz::verify
