// Calls of the kernels of texts on vectors, and a tokenizer with the ids a 0, b 1, ab 2.
#pragma once

#include <string>
#include <vector>

#include "core/kernel.h"
#include "tokenize/numbers.h"

namespace lz::testing_tokens {

inline int64_t SmallTokenizer() {
  auto made = tokenize::Tokenizer::Make(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
    "merges": [["a", "b"]]}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"}})");
  return made.ok() ? tokenize::NumberOf(*made) : -1;
}

template <class T>
lz_dtype TypeOf() {
  return {uint8_t(sizeof(T) == 1 ? 1 : 0), uint8_t(8 * sizeof(T)), 1};
}

// tensors: values, starts, results, ends; scalars: the tokenizer and no special tokens.
template <class From, class To>
int32_t Call(const KernelSpec& kernel, std::vector<From>& from, std::vector<int64_t>& starts, std::vector<To>& to,
             std::vector<int64_t>& ends, int64_t number) {
  int64_t shapes[4] = {int64_t(from.size()), int64_t(starts.size()), int64_t(to.size()), int64_t(ends.size())};
  int64_t stride = 1;
  void* const data[4] = {from.data(), starts.data(), to.data(), ends.data()};
  const lz_dtype types[4] = {TypeOf<From>(), TypeOf<int64_t>(), TypeOf<To>(), TypeOf<int64_t>()};
  lz_tensor tensors[5]{};
  for (int i = 0; i < 4; ++i) {
    tensors[i].data = data[i];
    tensors[i].device = {1, 0};
    tensors[i].ndim = 1;
    tensors[i].dtype = types[i];
    tensors[i].shape = &shapes[i];
    tensors[i].strides = &stride;
  }
  tensors[4].ndim = -1;
  lz_scalar scalars[9]{};
  scalars[0].value.i = number;
  lz_kernel_args args{};
  args.size = sizeof(args);
  args.tensors = tensors;
  args.scalars = scalars;
  return kernel.launch(&args);
}

}  // namespace lz::testing_tokens
