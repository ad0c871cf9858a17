// The formats of mlp.linear.quantized for products of few rows: how stored codes become pairs of T, and their scales.
#pragma once

#include "kernels/mlp/linear/few_rows_cuda.h"
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
  int32_t stage_groups;  // of a stage; 0: one scale serves all of a stage; -1: groups begin anywhere in stages
  int32_t unit_shift;    // log2 of a group's units, or of its half units
  int32_t aligned;       // rows of scales begin at multiples of 4 bytes
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
  static constexpr bool kScaled = true, kOffsets = kZeros, kPrepared = false;
  static constexpr bool kHalfUnits = kScaleType == DType::kF8E4M3;
  static constexpr Order kOrder = kHalfBytes && !kPacked && !kHalfUnits ? Order::kOctets : Order::kQuads;
  static constexpr int kScaleStride = 40;  // bytes of a row of scales: up to 32, 8 rows in different banks
  static constexpr int kScaleBytes = kColumns * kScaleStride;
  static constexpr int kExtraBytes = kScaleBytes * (kZeros ? 2 : 1);

  const Params& p;
  const uint8_t* scale_row;  // that the lane copies: row lane / 2
  const int32_t* zero_row;
  int32_t lane, column, last, stage = 0;
  Factors whole;  // of a stage with one scale

  __device__ Quantized(const Params& params, int column_, int last_, int lane_)
      : p(params), lane(lane_), column(column_), last(last_) {
    const int64_t row = ScaleRow(lane / 2);
    scale_row = p.scale + row * p.scale_stride;
    zero_row = kZeros ? p.zero + row * p.zero_stride : nullptr;
  }
  __device__ int64_t ScaleRow(int of_tile) const {
    const int j = column + of_tile < last ? column + of_tile : last;
    return p.row_block == 1 ? j : j / p.row_block;
  }
  __device__ DType Type() const { return kScaleType == DType::kF32 ? p.scale_type : kScaleType; }
  __device__ int ScaleSize() const { return kScaleType != DType::kF32 ? 1 : p.scale_size; }

  __device__ void Issue(int stage, uint8_t* extra) const {
    if (p.stage_groups <= 0) return;
    const int size = ScaleSize(), from = stage * p.stage_groups, left = p.columns - from;
    const int groups = left < p.stage_groups ? left : p.stage_groups;
    Copy(scale_row + from * size, groups * size, extra + lane / 2 * kScaleStride);
    if constexpr (kZeros) {
      Copy(reinterpret_cast<const uint8_t*>(zero_row + from), groups * 4,
           extra + kScaleBytes + lane / 2 * kScaleStride);
    }
  }
  // Two lanes copy a row.
  __device__ void Copy(const uint8_t* row, int bytes, uint8_t* to) const {
    if (p.aligned) {
      for (int i = lane % 2 * 4; i < bytes; i += 8) CopyAsync4(to + i, row + i, bytes - i < 4 ? bytes - i : 4);
    } else {
      for (int i = lane % 2; i < bytes; i += 2) to[i] = row[i];
    }
  }
  __device__ void Begin(int stage_) {
    stage = stage_;
    if (p.stage_groups == 0) whole = Stored(stage * kStageValues / p.group);
  }
  // Of group `at`, where it is stored.
  __device__ Factors Stored(int at) const {
    Factors f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t row = ScaleRow(lane / 4 + 8 * i);
      f.scale[i] = LoadFloat(p.scale + row * p.scale_stride, at, Type());
      f.offset[i] = kZeros ? Offset(f.scale[i], p.zero[row * p.zero_stride + at]) : 0.0f;
    }
    return f;
  }
  // Beyond 2^16 code * input - zero * input would not be exact enough: NaN has the sum taken again.
  // A scale in shared memory.
  __device__ float Scale(const uint8_t* row, int at) const {
    if constexpr (kScaleType == DType::kF8E8M0) return LoadFloat(row, at, kScaleType);
    if constexpr (kScaleType == DType::kF8E4M3) return F8ToFloat(row[at], __NV_E4M3);
    if (p.scale_type == DType::kF32) return reinterpret_cast<const float*>(row)[at];
    if (p.scale_type == DType::kBF16) return __uint_as_float(Half(row + 2 * at) << 16);
    return p.scale_type == DType::kF16 ? HalfFloat(row + 2 * at) : LoadFloat(row, at, DType::kF8E8M0);
  }
  __device__ static float Offset(float scale, int32_t zero) {
    return uint32_t(zero) + 65536u > 131072u ? nanf("") : -scale * float(zero);
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

  __device__ bool Ends(int unit, int half) const {
    if (kScaleType != DType::kF32) return true;  // groups of 16 and of 32
    if (unit == kStageValues / kUnit - 1) return true;
    if (p.stage_groups > 0) return ((unit + 1) & ((1 << p.unit_shift) - 1)) == 0;
    return p.stage_groups < 0 && (stage * kStageValues + (unit + 1) * kUnit) % p.group == 0;
  }
  __device__ Factors Scales(const uint8_t*, const uint8_t*, const uint8_t* extra, int unit, int half) const {
    if (p.stage_groups == 0) return whole;
    if (!kHalfUnits && p.stage_groups < 0) {
      const int at = (stage * kStageValues + unit * kUnit) / p.group;
      return Stored(at < p.columns ? at : p.columns - 1);
    }
    const int at = kHalfUnits ? 2 * unit + half : unit >> p.unit_shift;
    Factors f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint8_t* row = extra + (lane / 4 + 8 * i) * kScaleStride;
      f.scale[i] = Scale(row, at);
      f.offset[i] = kZeros ? Offset(f.scale[i], reinterpret_cast<const int32_t*>(row + kScaleBytes)[at]) : 0.0f;
    }
    return f;
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
