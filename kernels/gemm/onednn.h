// oneDNN's matmul, version 3 of its C interface. Named by the user: LAYERZERO_LIBRARIES="onednn=libdnnl.so.3". Built
// sequential or for OpenMP; each thread of a call runs it with one thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/library.h"

namespace lz::onednn {

// The part of oneDNN's C interface that is used; every function returns 0 on success.
using Object = void*;
struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};
struct Argument {
  int index;
  Object memory;
};
inline constexpr int kCpu = 1, kBF16 = 2, kF32 = 3;
inline constexpr int kSource = 1, kDestination = 17, kWeights = 33, kBiases = 41;
inline constexpr unsigned kInOrder = 1, kSequential = 1, kOpenMP = 2;
// dnnl_BA16a64b and dnnl_BA16a64b2a: the panels of linear_panels_prepack.
inline constexpr int kPanelsF32 = 506, kPanelsBF16 = 384;

struct Api {
  const Version* (*version)();
  int (*engine_create)(Object* engine, int kind, size_t index);
  int (*stream_create)(Object* stream, Object engine, unsigned flags);
  int (*stream_wait)(Object stream);
  int (*stream_destroy)(Object stream);
  int (*desc_create)(Object* desc, int ndims, const int64_t* dims, int type, const int64_t* strides);
  int (*desc_create_with_tag)(Object* desc, int ndims, const int64_t* dims, int type, int tag);
  int (*desc_destroy)(Object desc);
  int (*matmul_create)(Object* matmul, Object engine, Object source, Object weights, Object bias, Object destination,
                       Object attributes);
  int (*matmul_destroy)(Object matmul);
  int (*primitive_create)(Object* primitive, Object matmul);
  int (*primitive_destroy)(Object primitive);
  int (*memory_create)(Object* memory, Object desc, Object engine, void* data);
  int (*memory_set)(Object memory, void* data);
  int (*memory_destroy)(Object memory);
  int (*execute)(Object primitive, Object stream, int count, const Argument* arguments);
  int (*omp_get_max_threads)() = nullptr;  // null in sequential builds
  void (*omp_set_num_threads)(int) = nullptr;
  Object engine = nullptr;
};
inline Api g_api;

inline void Bind(Library& library) {
  if (!library.Find("dnnl_version", &g_api.version)) return;
  const Version& version = *g_api.version();
  const std::string found = std::to_string(version.major) + "." + std::to_string(version.minor);
  if (version.major != 3) return library.Refuse("oneDNN 3 is wanted, this is " + found);
  if (version.cpu_runtime != kSequential && version.cpu_runtime != kOpenMP) {
    return library.Refuse("oneDNN built sequential or for OpenMP is wanted, this one brings threads of its own");
  }
  bool all = library.Find("dnnl_engine_create", &g_api.engine_create) &&
             library.Find("dnnl_stream_create", &g_api.stream_create) &&
             library.Find("dnnl_stream_wait", &g_api.stream_wait) &&
             library.Find("dnnl_stream_destroy", &g_api.stream_destroy) &&
             library.Find("dnnl_memory_desc_create_with_strides", &g_api.desc_create) &&
             library.Find("dnnl_memory_desc_create_with_tag", &g_api.desc_create_with_tag) &&
             library.Find("dnnl_memory_desc_destroy", &g_api.desc_destroy) &&
             library.Find("dnnl_matmul_primitive_desc_create", &g_api.matmul_create) &&
             library.Find("dnnl_primitive_desc_destroy", &g_api.matmul_destroy) &&
             library.Find("dnnl_primitive_create", &g_api.primitive_create) &&
             library.Find("dnnl_primitive_destroy", &g_api.primitive_destroy) &&
             library.Find("dnnl_memory_create", &g_api.memory_create) &&
             library.Find("dnnl_memory_set_data_handle", &g_api.memory_set) &&
             library.Find("dnnl_memory_destroy", &g_api.memory_destroy) &&
             library.Find("dnnl_primitive_execute", &g_api.execute);
  if (version.cpu_runtime == kOpenMP) {
    all = all && library.FindBound("omp_get_max_threads", &g_api.omp_get_max_threads) &&
          library.FindBound("omp_set_num_threads", &g_api.omp_set_num_threads);
  }
  if (all && g_api.engine_create(&g_api.engine, kCpu, 0) != 0) library.Refuse("it returns no CPU engine");
}

inline const char* Open(const char* path) { return OpenLibrary<&Bind>("onednn", path); }

// Limits oneDNN to one thread in this thread, during its life.
class OneThread {
 public:
  OneThread() {
    if (!g_api.omp_get_max_threads) return;
    before_ = g_api.omp_get_max_threads();
    g_api.omp_set_num_threads(1);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() {
    if (g_api.omp_get_max_threads) g_api.omp_set_num_threads(before_);
  }

 private:
  int before_ = 1;
};

// The key of a primitive. All matrices are dense: matmul's fastest code requires a dense output. The weights are rows
// of k or panels.
struct Shape {
  int type;
  int64_t rows, columns, k;
  bool bias, panels;
  bool operator==(const Shape&) const = default;
};

// A primitive and the memory objects of its arguments. Used by one thread at a time.
class Matmul {
 public:
  Matmul() = default;
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;
  ~Matmul() { Clear(); }

  bool Is(const Shape& shape) const { return primitive_ && shape_ == shape; }
  bool Make(const Shape& s) {
    Clear();
    shape_ = s;
    std::array<Object, 4> descs{};
    const auto desc = [&](size_t i, int64_t rows, int64_t columns, int64_t down, int64_t across) {
      const int64_t dims[] = {rows, columns}, strides[] = {down, across};
      return g_api.desc_create(&descs[i], 2, dims, s.type, strides) == 0;
    };
    const auto weights = [&] {
      if (!s.panels) return desc(1, s.k, s.columns, 1, s.k);
      const int64_t dims[] = {s.k, s.columns};
      return g_api.desc_create_with_tag(&descs[1], 2, dims, s.type, s.type == kF32 ? kPanelsF32 : kPanelsBF16) == 0;
    };
    Object matmul = nullptr;
    bool made = desc(0, s.rows, s.k, s.k, 1) && weights() && (!s.bias || desc(2, 1, s.columns, s.columns, 1)) &&
                desc(3, s.rows, s.columns, s.columns, 1) &&
                g_api.matmul_create(&matmul, g_api.engine, descs[0], descs[1], descs[2], descs[3], nullptr) == 0 &&
                g_api.primitive_create(&primitive_, matmul) == 0;
    for (size_t i = 0; i < descs.size(); ++i) {
      if (!descs[i]) continue;
      made = made && g_api.memory_create(&memory_[i], descs[i], g_api.engine, nullptr) == 0;
      g_api.desc_destroy(descs[i]);
    }
    if (matmul) g_api.matmul_destroy(matmul);
    if (!made) Clear();
    return made;
  }
  bool Run(Object stream, const std::array<void*, 4>& data) const {
    constexpr std::array<int, 4> kIndices = {kSource, kWeights, kBiases, kDestination};
    std::array<Argument, 4> arguments;
    int count = 0;
    for (size_t i = 0; i < data.size(); ++i) {
      if (!memory_[i]) continue;
      if (g_api.memory_set(memory_[i], data[i]) != 0) return false;
      arguments[size_t(count++)] = {kIndices[i], memory_[i]};
    }
    return g_api.execute(primitive_, stream, count, arguments.data()) == 0 && g_api.stream_wait(stream) == 0;
  }

 private:
  void Clear() {
    for (Object& memory : memory_) {
      if (memory) g_api.memory_destroy(memory);
      memory = nullptr;
    }
    if (primitive_) g_api.primitive_destroy(primitive_);
    primitive_ = nullptr;
  }

  Shape shape_{};
  Object primitive_ = nullptr;
  std::array<Object, 4> memory_{};  // input, weight, bias, output
};

// The primitives that a thread created last. The first creation takes oneDNN milliseconds.
class Recent {
 public:
  Recent() = default;
  Recent(const Recent&) = delete;
  Recent& operator=(const Recent&) = delete;
  ~Recent() {
    if (stream_) g_api.stream_destroy(stream_);
  }

  const Matmul* Get(const Shape& shape) {
    for (const Matmul& m : kept_) {
      if (m.Is(shape)) return &m;
    }
    Matmul& oldest = kept_[next_++ % kept_.size()];
    return oldest.Make(shape) ? &oldest : nullptr;
  }
  Object stream() {
    if (!stream_) g_api.stream_create(&stream_, g_api.engine, kInOrder);
    return stream_;
  }

 private:
  std::array<Matmul, 32> kept_;
  size_t next_ = 0;
  Object stream_ = nullptr;
};

// The product of `shape` in this thread; data has input, weights, bias and output. Returns false if oneDNN has no
// primitive for it.
inline bool Multiply(const Shape& shape, const std::array<void*, 4>& data) {
  thread_local const auto recent = std::make_unique<Recent>();  // static TLS is scarce
  const OneThread alone;
  const Matmul* matmul = recent->Get(shape);
  return matmul && matmul->Run(recent->stream(), data);
}

}  // namespace lz::onednn
