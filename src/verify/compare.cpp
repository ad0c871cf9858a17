#include "verify/compare.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/view.h"
#include "ops/common/sampling_check.h"
#include "verify/numerics.h"

namespace lz::verify {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t NumElements(const lz_tensor& t) {
  int64_t n = t.ndim < 0 ? 0 : 1;
  for (int32_t i = 0; i < t.ndim; ++i) n *= t.shape[i];
  return n;
}
int64_t ElementOffset(const lz_tensor& t, int64_t flat) {
  int64_t offset = 0;
  for (int32_t i = t.ndim; i-- > 0;) {
    offset += flat % t.shape[i] * t.strides[i];
    flat /= t.shape[i];
  }
  return offset;
}

// |x - r|, with 0 for equal infinities and NaN for NaN, infinite where only one of them is finite.
double Distance(double x, double r) {
  if (std::isnan(r) || std::isnan(x)) return std::isnan(r) && std::isnan(x) ? 0 : kInfinity;
  if (std::isinf(r) || std::isinf(x)) return x == r ? 0 : kInfinity;
  return std::fabs(x - r);
}

// Keeps the element whose error is the largest part of its bound.
class Worst {
 public:
  explicit Worst(OutputReport* report) : report_(report) {}
  void Take(int64_t position, double wanted, double got, double error, double bound) {
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
  OutputReport* report_;
  double share_ = -1;
};

using Values = std::vector<double>;

void Elementwise(const Values& got, const Values& wanted, double tolerance, OutputReport* report) {
  report->measure = "elementwise";
  Worst worst(report);
  for (size_t i = 0; i < got.size(); ++i) {
    const double scale = std::isfinite(wanted[i]) ? 1 + std::fabs(wanted[i]) : 1;
    worst.Take(int64_t(i), wanted[i], got[i], Distance(got[i], wanted[i]), tolerance * scale);
  }
}

// Below the normal numbers a value has no relative precision.
double Smallest(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 0x1p-1022;
    case DType::kF16: return 0x1p-24;  // one step of its subnormal numbers
    default: return 0x1p-126;
  }
}

double LargestFinite(const Values& values, size_t begin, size_t end) {
  double largest = 0;
  for (size_t i = begin; i < end; ++i) {
    if (std::isfinite(values[i])) largest = std::max(largest, std::fabs(values[i]));
  }
  return largest;
}

// Largest finite |r| of each row is what errors are relative to; a row of few elements may cancel to almost nothing,
// and is measured by the largest of the tensor.
void RowMax(const Values& got, const Values& wanted, size_t row, double tolerance, DType dtype, OutputReport* report) {
  constexpr size_t kFew = 8;
  report->measure = "row max";
  Worst worst(report);
  const double of_tensor = row < kFew ? LargestFinite(wanted, 0, wanted.size()) : 0;
  for (size_t begin = 0; begin < got.size(); begin += row) {
    const double largest = row < kFew ? of_tensor : LargestFinite(wanted, begin, begin + row);
    for (size_t i = begin; i < begin + row; ++i) {
      worst.Take(int64_t(i), wanted[i], got[i], Distance(got[i], wanted[i]),
                 std::max(tolerance * largest, Smallest(dtype)));
    }
  }
}

// A value beyond what the dtype holds is rounded to infinity: then the reference's is infinite too.
void RoundToInfinity(const Values& got, DType dtype, Values* wanted) {
  const double largest = dtype == DType::kF16 ? 65504 : dtype == DType::kF64 ? DBL_MAX : FLT_MAX;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(got[i]) && std::fabs((*wanted)[i]) >= largest &&
        std::signbit(got[i]) == std::signbit((*wanted)[i])) {
      (*wanted)[i] = got[i];
    }
  }
}

// relF of the finite part: the position is that of the largest error. The classes' bounds are of many elements, whose
// rounding errors average; few may all be rounded by half a unit.
void RelativeNorm(const Values& got, const Values& wanted, double tolerance, DType dtype, OutputReport* report) {
  constexpr size_t kFew = 256;
  if (got.size() < kFew) tolerance = std::max(tolerance, dtype == DType::kBF16 ? 0x1p-8 : 0x1p-24);
  report->measure = "rel F";
  double squares = 0, errors = 0, largest = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(wanted[i]) || !std::isfinite(got[i])) continue;
    const double error = got[i] - wanted[i];
    squares += wanted[i] * wanted[i];
    errors += error * error;
    if (std::fabs(error) <= largest) continue;
    largest = std::fabs(error);
    report->position = int64_t(i);
    report->wanted = wanted[i];
    report->got = got[i];
  }
  report->error = squares > 0 ? std::sqrt(errors / squares) : errors > 0 ? kInfinity : 0;
  report->bound = tolerance;
  report->ok = report->error <= tolerance;
}

void ByClass(const NumericsBounds& bounds, DType dtype, const Values& got, const Values& wanted, size_t row,
             OutputReport* report) {
  const ErrorBound& bound = dtype == DType::kBF16 ? bounds.bf16 : bounds.f32;
  RowMax(got, wanted, row, bound.row_max, dtype, report);
  if (!report->ok) return;
  OutputReport norm = *report;
  RelativeNorm(got, wanted, bound.rel_f, dtype, &norm);
  if (!norm.ok) *report = std::move(norm);
}

void LogSumExp(const Values& got, const Values& wanted, double bound, OutputReport* report) {
  report->measure = "lse";
  Worst worst(report);
  for (size_t i = 0; i < got.size(); ++i) {
    const double scale = std::isfinite(wanted[i]) ? std::max(1.0, std::fabs(wanted[i])) : 1;
    worst.Take(int64_t(i), wanted[i], got[i], Distance(got[i], wanted[i]), bound * scale);
  }
}

}  // namespace

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
                           const lz_tensor& got_tensor, std::vector<double> wanted) {
  OutputReport report;
  report.output = std::string(output);
  const View view(got_tensor);
  Values got(size_t(NumElements(got_tensor)));
  for (size_t i = 0; i < got.size(); ++i) got[i] = view.Load(ElementOffset(got_tensor, int64_t(i)));
  if (got.empty()) return report;
  const DType dtype = view.dtype();
  RoundToInfinity(got, dtype, &wanted);
  const size_t row = got_tensor.ndim > 0 ? size_t(got_tensor.shape[got_tensor.ndim - 1]) : 1;
  const NumericsBounds* bounds = FindNumerics(numerics);
  if (bounds && (dtype == DType::kF32 || dtype == DType::kBF16)) {
    if (output == "lse") {
      LogSumExp(got, wanted, bounds->lse, &report);
    } else {
      ByClass(*bounds, dtype, got, wanted, row, &report);
    }
    return report;
  }
  const double tolerance = BoundOf(contract.tolerance, dtype);
  if (contract.tolerance.compare == Compare::kRowMax) {
    RowMax(got, wanted, row, tolerance, dtype, &report);
  } else {
    Elementwise(got, wanted, tolerance, &report);
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
