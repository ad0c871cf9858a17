// A stand-in for cuBLASLt that computes on host memory and refuses what the library refuses: an address, a leading
// dimension or a workspace that does not fit. LZ_FAKE_VERSION: its version; LZ_FAKE_TORN: it lacks cublasLtMatmul.
#include "tests/kernels/gemm/fake_cublaslt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/float_formats.h"

namespace {

enum { kSuccess = 0, kInvalidValue = 7, kNotSupported = 15 };
constexpr int kTypeF32 = 0, kTypeF16 = 2, kTypeBF16 = 14;

struct Desc {
  int32_t transpose[2] = {0, 0};
  uint32_t epilogue = 1;
  const void* bias = nullptr;
};
struct Layout {
  int type;
  int64_t rows, columns, ld, step = 0;
  int32_t batch = 1;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reduction = 7, alignment[4] = {256, 256, 256, 256};
};
struct Algo {
  uint64_t number, alignment, reduction, workspace, most_workspace, unused[3];
};
struct Result {
  Algo algo;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

FakeCublasLt g_state;

double Load(const void* data, int type, int64_t i) {
  if (type == kTypeF32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == kTypeBF16 ? lz::BF16ToFloat(bits) : lz::F16ToFloat(bits);
}
void Store(void* data, int type, int64_t i, double v) {
  if (type == kTypeF32) {
    static_cast<float*>(data)[i] = float(v);
  } else {
    static_cast<uint16_t*>(data)[i] = type == kTypeBF16 ? lz::DoubleToBF16(v) : lz::DoubleToF16(v);
  }
}
double Activated(double v, uint32_t epilogue) {
  if (epilogue & 2) return v < 0 ? 0 : v;
  if (epilogue & 32) return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  return v;
}
template <class T>
int Made(void** to, T* object) {
  ++g_state.alive;
  *to = object;
  return kSuccess;
}
template <class T>
int Gone(void* object) {
  --g_state.alive;
  delete static_cast<T*>(object);
  return kSuccess;
}
template <class T>
int Assign(T* to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return kInvalidValue;
  std::memcpy(to, value, bytes);
  return kSuccess;
}
bool Fits(const Layout& l) { return l.rows > 0 && l.columns > 0 && l.ld >= l.rows && l.batch > 0; }

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE FakeCublasLt* fake_cublaslt_state() { return &g_state; }
FAKE size_t cublasLtGetVersion() { return LZ_FAKE_VERSION; }
FAKE int cublasLtCreate(void** handle) {
  if (g_state.create_status != kSuccess) return g_state.create_status;
  ++g_state.handles;
  *handle = &g_state;
  return kSuccess;
}
FAKE int cublasLtMatmulDescCreate(void** desc, int compute, int scale) {
  return compute == 68 && scale == kTypeF32 ? Made(desc, new Desc) : kInvalidValue;
}
FAKE int cublasLtMatmulDescDestroy(void* desc) { return Gone<Desc>(desc); }
FAKE int cublasLtMatmulDescSetAttribute(void* desc, int attribute, const void* value, size_t bytes) {
  auto& d = *static_cast<Desc*>(desc);
  switch (attribute) {
    case 3:
    case 4: return Assign(&d.transpose[attribute - 3], value, bytes);
    case 7:
      for (uint32_t known : {1u, 2u, 4u, 6u, 32u, 36u}) {
        if (std::memcmp(&known, value, sizeof(known)) == 0) return Assign(&d.epilogue, value, bytes);
      }
      return kInvalidValue;
    case 8: return Assign(&d.bias, value, bytes);
    default: return kInvalidValue;
  }
}
FAKE int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  return Made(layout, new Layout{type, int64_t(rows), int64_t(columns), ld});
}
FAKE int cublasLtMatrixLayoutDestroy(void* layout) { return Gone<Layout>(layout); }
FAKE int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, size_t bytes) {
  auto& l = *static_cast<Layout*>(layout);
  return attribute == 5   ? Assign(&l.batch, value, bytes)
         : attribute == 6 ? Assign(&l.step, value, bytes)
                          : int(kInvalidValue);
}
FAKE int cublasLtMatmulPreferenceCreate(void** preference) { return Made(preference, new Preference); }
FAKE int cublasLtMatmulPreferenceDestroy(void* preference) { return Gone<Preference>(preference); }
FAKE int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t bytes) {
  auto& p = *static_cast<Preference*>(preference);
  if (attribute == 1) return Assign(&p.workspace, value, bytes);
  if (attribute == 3) return Assign(&p.reduction, value, bytes);
  return attribute >= 5 && attribute <= 8 ? Assign(&p.alignment[attribute - 5], value, bytes) : int(kInvalidValue);
}

FAKE int cublasLtMatmulAlgoGetHeuristic(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference,
                                        int wanted, Result* results, int* returned) {
  ++g_state.heuristics;
  const auto& p = *static_cast<Preference*>(preference);
  const auto& described = *static_cast<Desc*>(desc);
  if (handle != &g_state || c != d || ((described.epilogue & 4) && !described.bias)) return kInvalidValue;
  for (void* layout : {a, b, d}) {
    if (!Fits(*static_cast<Layout*>(layout))) return kInvalidValue;
  }
  *returned = 0;
  for (int i = 0; i < std::min(wanted, g_state.algorithms); ++i) {
    const auto kib = uint64_t(i) * 1024;
    if (kib > p.workspace) break;
    Result& result = results[(*returned)++];
    result.algo = {uint64_t(i), *std::min_element(p.alignment, p.alignment + 4), p.reduction, kib, p.workspace, {}};
    result.workspace = kib;
    result.status = i == 0 ? g_state.status_of_first : kSuccess;
  }
  return *returned > 0 ? kSuccess : kNotSupported;
}

#ifndef LZ_FAKE_TORN
FAKE int cublasLtMatmul(void* handle, void* desc, const float* alpha, const void* a, void* a_layout, const void* b,
                        void* b_layout, const float* beta, const void* c, void* c_layout, void* d, void* d_layout,
                        const Algo* algo, void* workspace, size_t workspace_bytes, void* stream) {
  const auto& what = *static_cast<Desc*>(desc);
  const auto &la = *static_cast<Layout*>(a_layout), &lb = *static_cast<Layout*>(b_layout),
             &ld = *static_cast<Layout*>(d_layout);
  if (g_state.product_status != kSuccess) return g_state.product_status;
  const auto misplaced = [](const void* p, uint64_t to) { return reinterpret_cast<uintptr_t>(p) % to != 0; };
  if (handle != &g_state || *alpha != 1 || *beta != 0 || c != d || c_layout != d_layout) return kInvalidValue;
  if (workspace_bytes < algo->workspace || misplaced(workspace, 256)) return kInvalidValue;
  for (const void* operand : {a, b, static_cast<const void*>(d), what.bias}) {
    if (operand && misplaced(operand, algo->alignment)) return kInvalidValue;
  }
  if (workspace_bytes > 0) std::memset(workspace, 0xee, workspace_bytes);
  ++g_state.products;
  g_state.algorithm = int(algo->number), g_state.epilogue = int(what.epilogue), g_state.batch = ld.batch;
  g_state.alignment = uint32_t(algo->alignment), g_state.reduction = uint32_t(algo->reduction);
  g_state.most_workspace = algo->most_workspace, g_state.workspace_bytes = workspace_bytes;
  g_state.workspace = workspace, g_state.stream = stream;
  const int64_t k = what.transpose[0] ? la.rows : la.columns;
  for (int64_t batch = 0; batch < ld.batch; ++batch) {
    for (int64_t row = 0; row < ld.columns; ++row) {
      for (int64_t j = 0; j < ld.rows; ++j) {
        double sum = (what.epilogue & 4) ? Load(what.bias, ld.type, j) : 0;
        for (int64_t i = 0; i < k; ++i) {
          const int64_t of_a = what.transpose[0] ? j * la.ld + i : i * la.ld + j;
          sum += Load(a, la.type, batch * la.step + of_a) * Load(b, lb.type, batch * lb.step + row * lb.ld + i);
        }
        Store(d, ld.type, batch * ld.step + row * ld.ld + j, Activated(sum, what.epilogue));
      }
    }
  }
  return kSuccess;
}
#endif
