// The formats of mlp.linear.quantized for products of few rows: how stored codes become pairs of T, and their scales.
#pragma once

#include "kernels/gemm/few_rows_cuda.h"
#include "kernels/quantize/codes_cuda.h"

namespace lz::few_rows {

enum class Codes : uint8_t { kBytes, kNibbles, kPackedNibbles, kE2M1, kPackedE2M1, kE4M3, kE5M2 };

// Scales, and zero points of the same shape: [scale_rows, scale_columns].
struct QuantParams {
  const uint8_t* scale;
  int64_t scale_stride;  // bytes from a row to the next
  const int32_t* zero;
  int64_t zero_stride;  // elements
  const float* tensor_scale;
  int64_t tensor_scale_stride;
  int32_t row_block, group, columns;
  int32_t stage_groups;     // of a stage; 0: one scale serves all of a stage; -1: groups begin anywhere in stages
  int32_t stages_of_group;  // where that is one scale of several in a row; else 0
  int32_t unit_shift;       // log2 of the units of a group that has fewer than a stage
  int32_t aligned;          // rows of scales begin at multiples of 4 bytes
  DType scale_type;
  int32_t scale_size;
  uint32_t flip;  // makes codes unsigned, in each byte, or both halves for codes of 4 bits
  uint32_t bias;  // what they then count from
};

#ifdef __CUDACC__
// kScaleType: of MXFP4 and NVFP4; kF32: that of the call. kZeros: with zero points.
template <Codes kCodes, DType kScaleType, bool kZeros>
struct Quantized {
  using Params = QuantParams;
  static constexpr bool kIntegers = kCodes <= Codes::kPackedNibbles;
  static constexpr bool kPacked = kCodes == Codes::kPackedNibbles || kCodes == Codes::kPackedE2M1;
  static constexpr bool kHalfBytes = kCodes >= Codes::kNibbles && kCodes <= Codes::kPackedE2M1;
  static constexpr int kStageBytes = 128, kStageValues = kHalfBytes ? 256 : 128;
  static constexpr bool kScaled = true, kOffsets = kZeros, kPrepared = true;
  static constexpr bool kHalfUnits = kScaleType == DType::kF8E4M3;
  static constexpr Order kOrder = kHalfBytes && !kPacked && !kHalfUnits ? Order::kOctets : Order::kQuads;
  static constexpr int kScaleStride = 40;  // bytes of a row of scales: up to 32, 8 rows in different banks
  static constexpr int kScaleBytes = kColumns * kScaleStride;
  static constexpr int kExtraBytes = kScaleBytes * (kZeros ? 2 : 1);
  static constexpr bool kOften = kScaleType != DType::kF32;  // groups are units, or their halves
  static constexpr int kUnits = kStageValues / kUnit;
  static constexpr int kFactorsStride = ((kHalfUnits ? 2 * kUnits : kUnits) + 1) * (kZeros ? 2 : 1);  // floats
  static constexpr int kFactorsBytes = kColumns * kFactorsStride * int(sizeof(float));

  const Params& p;
  const uint8_t* scale_row;  // of row lane / 2: two lanes prepare a row
  const int32_t* zero_row;
  int32_t lane, stage = 0;
  float whole_scale = 0;  // of a stage with one scale
  int32_t whole_zero = 0;

  __device__ Quantized(const Params& params, int column, int last, int lane_) : p(params), lane(lane_) {
    const int j = column + lane / 2 < last ? column + lane / 2 : last;
    const int64_t row = p.row_block == 1 ? j : j / p.row_block;
    scale_row = p.scale + row * p.scale_stride;
    zero_row = kZeros ? p.zero + row * p.zero_stride : nullptr;
  }
  __device__ int ScaleSize() const { return kScaleType != DType::kF32 ? 1 : p.scale_size; }
  // Units that share a factor.
  __device__ int Every() const { return p.stage_groups == 0 ? kUnits : p.group == 128 ? 4 : 1; }

  __device__ void Issue(int stage_, uint8_t* extra) const {
    if (p.stage_groups == 0) return;
    const int size = ScaleSize();
    uint8_t* to = extra + lane / 2 * kScaleStride;
    if (p.stage_groups < 0) return Gather(stage_, size, to);
    const int from = stage_ * p.stage_groups, left = p.columns - from;
    const int groups = left < p.stage_groups ? left : p.stage_groups;
    Copy(scale_row + from * size, groups * size, to);
    if constexpr (kZeros) Copy(reinterpret_cast<const uint8_t*>(zero_row + from), groups * 4, to + kScaleBytes);
  }
  __device__ void Copy(const uint8_t* row, int bytes, uint8_t* to) const {
    if (p.aligned) {
#pragma unroll 1
      for (int i = lane % 2 * 4; i < bytes; i += 8) CopyAsync4(to + i, row + i, bytes - i < 4 ? bytes - i : 4);
    } else {
#pragma unroll 1
      for (int i = lane % 2; i < bytes; i += 2) to[i] = row[i];
    }
  }
  // One scale for each unit.
  __device__ void Gather(int stage_, int size, uint8_t* to) const {
#pragma unroll 1
    for (int unit = lane % 2; unit < kUnits; unit += 2) {
      const int group = (stage_ * kStageValues + unit * kUnit) / p.group,
                at = group < p.columns ? group : p.columns - 1;
#pragma unroll 1
      for (int i = 0; i < size; ++i) to[unit * size + i] = scale_row[at * size + i];
      if constexpr (kZeros) reinterpret_cast<int32_t*>(to + kScaleBytes)[unit] = zero_row[at];
    }
  }
  __device__ void Begin(int stage_) {
    stage = stage_;
    if (kOften || p.stage_groups != 0) return;
    const int at = p.stages_of_group == 0 ? 0 : p.stages_of_group == 1 ? stage : stage / p.stages_of_group;
    whole_scale = Scale(scale_row, at);
    if constexpr (kZeros) whole_zero = zero_row[at];
  }
  __device__ float Scale(const uint8_t* row, int at) const {
    if constexpr (kScaleType == DType::kF8E8M0) return LoadFloat(row, at, kScaleType);
    if constexpr (kScaleType == DType::kF8E4M3) return F8ToFloat(row[at], __NV_E4M3);
    if (p.scale_type == DType::kF32) return reinterpret_cast<const float*>(row)[at];
    if (p.scale_type == DType::kBF16) return __uint_as_float(Half(row + 2 * at) << 16);
    return p.scale_type == DType::kF16 ? HalfFloat(row + 2 * at) : LoadFloat(row, at, DType::kF8E8M0);
  }
  // Beyond 2^16 code * input - zero * input would not be exact enough: NaN has the sum taken again.
  __device__ static float Offset(float scale, int32_t zero) {
    return uint32_t(zero) + 65536u > 131072u ? nanf("") : -scale * float(zero);
  }
  __device__ static void Store(float* factors, int at, float scale, int32_t zero) {
    factors[kZeros ? 2 * at : at] = scale;
    if constexpr (kZeros) factors[2 * at + 1] = Offset(scale, zero);
  }
  template <int kEvery>
  __device__ void Prepare(const uint8_t*, const uint8_t* extra, float* factors) const {
    factors += lane / 2 * kFactorsStride;
    const uint8_t* row = extra + lane / 2 * kScaleStride;
    if constexpr (kEvery == kUnits && !kOften) {
      if (lane % 2 == 0) Store(factors, 0, whole_scale, whole_zero);
    } else {
      constexpr int kOfRow = (kHalfUnits ? 2 : 1) * kUnits / kEvery;
      const int groups = p.stage_groups < 0 ? kUnits : p.columns - stage * p.stage_groups;
#pragma unroll
      for (int i = 0; i < kOfRow / 2; ++i) {
        const int factor = 2 * i + lane % 2, at = kHalfUnits ? factor : factor * kEvery >> p.unit_shift;
        const bool real = at < groups;  // none past the row's end
        const int32_t zero = kZeros && real ? reinterpret_cast<const int32_t*>(row + kScaleBytes)[at] : 0;
        Store(factors, factor, real ? Scale(row, at) : 0.0f, zero);
      }
    }
  }
  template <int kEvery>
  __device__ Factors Scales(const uint8_t*, const uint8_t*, const float* factors, int unit, int half) const {
    const int at = kHalfUnits ? 2 * unit + half : unit / kEvery;
    Factors f = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* row = factors + (lane / 4 + 8 * i) * kFactorsStride;
      f.scale[i] = row[kZeros ? 2 * at : at];
      if constexpr (kZeros) f.offset[i] = row[2 * at + 1];
    }
    return f;
  }

  template <class T>
  __device__ void Row(const uint8_t* codes, int unit, int t, uint32_t (&pairs)[4]) const {
    if constexpr (kHalfBytes) {
      constexpr bool kQuadsOfBytes = kOrder == Order::kQuads && !kPacked;
      const uint8_t* at = codes + unit * 16;
      const uint32_t w = kQuadsOfBytes ? Bytes(Half(at + t * 2), Half(at + 8 + t * 2), 0x5140) : Word(at + t * 4);
      constexpr int kShift[4] = {0, kPacked ? 8 : 4, kPacked ? 4 : 8, 12};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kIntegers) {
          pairs[i] = SmallIntegers<T>(w >> kShift[i] & 0x000f000fu, p.flip, p.bias);
        } else {
          pairs[i] = HalfByteFloats<T>(w >> kShift[i]);
        }
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t w = Word(codes + unit * 32 + half * 16 + t * 4);
        if constexpr (kIntegers) {
          w ^= p.flip;
          pairs[2 * half] = ByteIntegers<T>(w, 0, p.bias), pairs[2 * half + 1] = ByteIntegers<T>(w, 1, p.bias);
        } else {
          constexpr auto kKind = kCodes == Codes::kE4M3 ? __NV_E4M3 : __NV_E5M2;
          w = Bytes(w, 0, 0x3120);
          pairs[2 * half] = ByteFloats<T>(w & 0xffffu, kKind), pairs[2 * half + 1] = ByteFloats<T>(w >> 16, kKind);
        }
      }
    }
  }

  __device__ static float Final(const Params& p, int j) {
    return p.tensor_scale == nullptr ? 1.0f : p.tensor_scale[j * p.tensor_scale_stride];
  }
  __device__ static double At(const Params& p, const uint8_t* row, int j, int i) {
    int code = row[kHalfBytes ? (kPacked ? i / 32 * 16 + i % 16 : i / 2) : i];
    if constexpr (kHalfBytes) code = code >> ((kPacked ? i % 32 >= 16 : i % 2) ? 4 : 0) & 15;
    const int64_t scale_row = j / p.row_block, at = i / p.group;
    float v;
    if constexpr (kCodes == Codes::kE2M1 || kCodes == Codes::kPackedE2M1) {
      v = E2M1Value(code);
    } else if constexpr (kCodes == Codes::kE4M3 || kCodes == Codes::kE5M2) {
      v = F8ToFloat(uint8_t(code), kCodes == Codes::kE4M3 ? __NV_E4M3 : __NV_E5M2);
    } else {
      const int64_t zero = kZeros ? p.zero[scale_row * p.zero_stride + at] : 0;
      v = float(int64_t(code ^ int(p.flip & 255)) - int64_t(p.bias) - zero);
    }
    v *= LoadFloat(p.scale + scale_row * p.scale_stride, at, kScaleType == DType::kF32 ? p.scale_type : kScaleType);
    return double(p.tensor_scale == nullptr ? v : v * Final(p, j));
  }
};
#endif  // __CUDACC__

}  // namespace lz::few_rows
