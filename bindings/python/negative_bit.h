// torch's negative bit: views whose memory has the negated numbers (imaginary parts of conjugates, torch._neg_view).
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

namespace lz::python {

// Calling a tensor's method costs as much as reading the tensor; reading the bit from torch's struct costs nothing. Its
// place is found from known tensors, never assumed: docs/design/0002-python-binding.md.
class NegativeBit {
 public:
  // `plain` and `negated`: tuples of tensors without and with the bit, of one dtype and device. If they do not identify
  // exactly one place, the tensors' methods are called instead.
  void Find(PyObject* base_type, PyObject* plain, PyObject* negated);
  bool Found() const { return bit_ != 0; }
  // Also true if a tensor's method fails.
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
  size_t impl_ = 0;  // offset in bytes of the pointer to the tensor in the Python object
  size_t word_ = 0;
  uint64_t bit_ = 0;
};

}  // namespace lz::python
