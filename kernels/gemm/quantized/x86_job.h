// One call of linear_quantized with few rows, in the form that the kernels with AVX512-VBMI take: its sizes, its
// scales, and where each lane finds its own. For files of x86-64 only.
#pragma once

#include <algorithm>
#include <bit>

#include "kernels/gemm/quantized/x86_decode.h"
#include "kernels/launch.h"
#include "ops/mlp/linear/quantized.h"

namespace lz::quantized {
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;

constexpr int64_t kBlock = 128;     // values of the input that are reordered at a time
constexpr int64_t kUnit = 16;       // values that always share a scale
constexpr int64_t kChunk = 128;     // scales that are converted at a time
constexpr int64_t kPairChunk = 64;  // the same for scales of one byte

enum class Scaling : uint8_t { kRow, kFloats, kFloatsAndOffsets, kPairs };

// The data that all columns of a call share.
struct Job {
  explicit Job(const lz_kernel_args* args);
  int64_t padded() const { return (k + kBlock - 1) / kBlock * kBlock; }
  int64_t steps() const { return padded() / step; }
  int64_t sets() const { return split ? 2 : 1; }
  int64_t x_bytes() const { return floats ? 4 : 2; }

  const lz_kernel_args* args;
  int64_t format, rows, n, k;
  Storage storage;
  const Tables *tables, *e4m3;  // tables of the weights; of 1-byte scales, null: they are E8M0
  Scaling scaling;
  int64_t step;                            // values in 64 bytes
  int64_t group;                           // values with one scale, as the steps use them
  int64_t stored_group;                    // the same as stored
  int64_t scales_of_step, steps_of_scale;  // one of them is 1
  int64_t scales;                          // scales of a row, as the steps use them
  int64_t chunk;                           // steps whose scales are converted at a time
  int64_t row_block;                       // rows of weights with one row of scales
  bool own_scales;  // each row has its own: a division per row would take as long as the row's end
  bool direct;      // scales are read as stored
  bool floats;      // the input is not bf16
  DType scale_type;
  const char* scale_data;
  int64_t scale_bytes, scale_row_bytes;  // distance in bytes from one to the next
  const int32_t* zeros = nullptr;        // zero points
  int64_t zero_stride = 0, zero_row = 0;
  const float* outer = nullptr;  // scales of the tensor or of its rows
  int64_t outer_row = 0;
  bool split;        // packed half bytes, with a scale for each 16 values
  float offset = 0;  // offset of the weights besides the zero point
  int flip = 0;      // see Decoder
  const uint8_t* weight;
  int64_t weight_stride;
  alignas(64) int32_t lanes[2][16];  // place of each lane's scale among those of a step; [1]: of the second set
  // For each tile of rows: the input in the order of the weights, and, for offsets, the sums of the values of a lane.
  void* x = nullptr;      // [steps][vectors][height][32] of bf16 or float
  float* sums = nullptr;  // [steps][sets][height][16]
};

inline Job::Job(const lz_kernel_args* a) : args(a), format(a->scalars[kFormat].value.i) {
  const lz_tensor &input = a->tensors[kInput], &scale = a->tensors[kWeightScale];
  const bool packed = Given(a->tensors[kPacked]);
  const lz_tensor& stored = a->tensors[packed ? kPacked : kWeight];
  floats = DTypeOf(input) != DType::kBF16;
  rows = NumRows(input), n = a->tensors[kWeight].shape[0], k = input.shape[input.ndim - 1];
  weight = Data<const uint8_t>(stored), weight_stride = stored.strides[0];
  const bool integer = IsInteger(format);
  storage = kQuantInfo[size_t(format)].pack == 2 ? (packed ? Storage::kPackedNibbles : Storage::kNibbles)
            : integer                            ? Storage::kIntegers
                                                 : Storage::kFloats;
  tables = &Tables::Of(format), e4m3 = format == kNVFP4 ? &Tables::Of(kFP8E4M3) : nullptr;
  step = IsHalfByte(storage) ? 128 : 64;
  if (storage == Storage::kIntegers) offset = (floats ? 0.0f : 0.5f) - (format == kUInt8 ? 128.0f : 0.0f);
  if (storage == Storage::kIntegers && format == kUInt8) flip = 128;
  if (format == kUInt4) offset = -8;
  group = stored_group = std::max<int64_t>(1, scale.shape[1] > 0 ? k / scale.shape[1] : k);
  row_block = scale.shape[0] > 0 ? std::max<int64_t>(1, n / scale.shape[0]) : 1;
  own_scales = row_block == 1;
  const bool divides = step % group == 0 || group % step == 0;
  const lz_tensor &zero = a->tensors[kZeroPoint], &outer_scale = a->tensors[kTensorScale];
  scale_type = DTypeOf(scale);
  scale_data = Data<const char>(scale);
  scale_bytes = scale.strides[1] * ByteSize(scale_type), scale_row_bytes = scale.strides[0] * ByteSize(scale_type);
  if (Given(zero)) zeros = Data<const int32_t>(zero), zero_stride = zero.strides[1], zero_row = zero.strides[0];
  if (Given(outer_scale)) {
    outer = Data<const float>(outer_scale);
    if (outer_scale.ndim > 0 && outer_scale.shape[0] > 1) outer_row = outer_scale.strides[0];
  }
  const bool dense = divides && (scale.strides[1] == 1 || scale.shape[1] == 1);
  scaling = scale.shape[1] == 1                                   ? Scaling::kRow
            : offset != 0 || zeros                                ? Scaling::kFloatsAndOffsets
            : ByteSize(scale_type) == 1 && dense && group <= step ? Scaling::kPairs
                                                                  : Scaling::kFloats;
  direct = scaling == Scaling::kPairs ||
           (scale_type == DType::kF32 && dense && (!zeros || zero.strides[1] == 1 || zero.shape[1] == 1));
  if (!divides && scaling != Scaling::kRow) group = kUnit;
  split = storage == Storage::kPackedNibbles && group == kUnit && scaling != Scaling::kRow;
  scales_of_step = std::max<int64_t>(1, step / group), steps_of_scale = std::max<int64_t>(1, group / step);
  scales = (k + group - 1) / group;
  for (int64_t lane = 0; lane < 16; ++lane) {
    const int64_t value =
        storage == Storage::kNibbles ? lane * 8 : lane / 4 * (storage == Storage::kPackedNibbles ? 32 : 16);
    for (int64_t set = 0; set < 2; ++set)  // a group that is part of a step is a power of two
      lanes[set][lane] = group < step ? int32_t((value + set * kUnit) >> std::countr_zero(uint64_t(group))) : 0;
  }
  chunk = (scaling == Scaling::kPairs ? kPairChunk : kChunk) / scales_of_step * steps_of_scale;
}

// The scales of a row of weights.
struct RowScales {
  RowScales(const Job& job, int64_t row) : job(job), row(row) {
    const int64_t at = job.own_scales ? row : row / job.row_block;
    data = job.scale_data + at * job.scale_row_bytes;
    zeros = job.zeros ? job.zeros + at * job.zero_row : nullptr;
  }
  float factor() const { return job.outer ? job.outer[row * job.outer_row] : 1.0f; }
  float Scale(int64_t i) const {
    const char* at = data + i * job.scale_bytes;
    switch (job.scale_type) {
      case DType::kF32: return *reinterpret_cast<const float*>(at);
      case DType::kF16: return F16ToFloat(*reinterpret_cast<const uint16_t*>(at));
      case DType::kBF16: return BF16ToFloat(*reinterpret_cast<const uint16_t*>(at));
      case DType::kF8E4M3: return F8E4M3ToFloat(uint8_t(*at));
      default: return F8E8M0ToFloat(uint8_t(*at));
    }
  }
  int32_t Zero(int64_t i) const { return job.zeros ? zeros[i * job.zero_stride] : 0; }
  const Job& job;
  int64_t row;
  const char* data;
  const int32_t* zeros;
};

// The scales and zero points of a row's groups from `first` on, as the steps use them.
__attribute__((noinline)) inline void Convert(const Job& job, int64_t row, int64_t first, int64_t count, float* scales,
                                              int32_t* zeros) {
  const RowScales of(job, row);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t group = job.group, stored = job.stored_group;
    const int64_t at = stored == group ? first + i : (first + i) * group / stored;
    scales[i] = of.Scale(at);
    if (zeros) zeros[i] = of.Zero(at);
  }
}

}  // namespace lz::quantized
