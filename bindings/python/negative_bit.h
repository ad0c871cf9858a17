// torch's negative bit: views whose memory holds the negated numbers (imaginary parts of conjugates, torch._neg_view).
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

namespace lz::door {

// Asking a tensor costs as much as reading it; the bit's place in torch's own struct costs nothing. It is found from
// tensors that are known, never assumed: docs/design/0002-python-door.md.
class NegativeBit {
 public:
  // `plain` and `negated`: tuples of tensors without and with the bit, of one dtype and device. Where they do not show
  // one place and no other, tensors are asked.
  void Find(PyObject* base_type, PyObject* plain, PyObject* negated);
  bool Found() const { return bit_ != 0; }
  // True too where a tensor does not say.
  bool IsSet(PyObject* tensor) const { return bit_ ? (Keys(tensor, word_) & bit_) != 0 : Asked(tensor); }

 private:
  uint64_t Keys(PyObject* tensor, size_t word) const {
    const uint64_t* impl = *reinterpret_cast<const uint64_t* const*>(reinterpret_cast<const char*>(tensor) + impl_);
    return impl[word];
  }
  bool Asked(PyObject* tensor) const;
  bool FindImpl(PyObject* tensor);
  bool Same(PyObject* tensors, size_t word, uint64_t* value) const;

  PyCFunction is_neg_ = nullptr;
  size_t impl_ = 0;  // bytes from the Python object to its pointer to the tensor
  size_t word_ = 0;
  uint64_t bit_ = 0;
};

}  // namespace lz::door
