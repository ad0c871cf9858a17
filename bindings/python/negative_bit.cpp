#include "negative_bit.h"

#include <bit>
#include <cstring>
#include <initializer_list>

namespace lz::python {
namespace {

// Words of c10::TensorImpl, with the rounding of its allocation, in every release since 2.11.
constexpr size_t kWords = 23;

size_t SizeOf(PyObject* object) {
  PyObject* size = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__basicsize__");
  const size_t bytes = size ? PyLong_AsSize_t(size) : 0;
  Py_XDECREF(size);
  return PyErr_Occurred() ? 0 : bytes;
}

}  // namespace

bool NegativeBit::Asked(PyObject* tensor) const {
  PyObject* answer = is_neg_ ? is_neg_(tensor, nullptr) : PyObject_CallMethod(tensor, "is_neg", nullptr);
  if (!answer) PyErr_Clear();
  const bool set = answer != Py_False;
  Py_XDECREF(answer);
  return set;
}

bool NegativeBit::FindImpl(PyObject* tensor) {
  PyObject* address = PyObject_GetAttrString(tensor, "_cdata");
  const uint64_t wanted = address ? PyLong_AsUnsignedLongLong(address) : 0;
  Py_XDECREF(address);
  const size_t size = SizeOf(tensor);
  for (size_t at = sizeof(PyObject); at + sizeof(wanted) <= size && wanted; at += sizeof(wanted)) {
    uint64_t value;
    std::memcpy(&value, reinterpret_cast<const char*>(tensor) + at, sizeof(value));
    if (value != wanted || (impl_ && impl_ != at)) continue;
    impl_ = at;
    return true;
  }
  return false;
}

// True if the word is the same in all of them.
bool NegativeBit::Same(PyObject* tensors, size_t word, uint64_t* value) const {
  *value = Keys(PyTuple_GetItem(tensors, 0), word);
  for (Py_ssize_t i = 1; i < PyTuple_Size(tensors); ++i) {
    if (Keys(PyTuple_GetItem(tensors, i), word) != *value) return false;
  }
  return true;
}

void NegativeBit::Find(PyObject* base_type, PyObject* plain, PyObject* negated) {
  *this = NegativeBit();
  void* methods = PyType_GetSlot(reinterpret_cast<PyTypeObject*>(base_type), Py_tp_methods);
  for (auto* row = static_cast<PyMethodDef*>(methods); row && row->ml_name; ++row) {
    if (std::strcmp(row->ml_name, "is_neg") == 0 && row->ml_flags == METH_NOARGS) is_neg_ = row->ml_meth;
  }
  bool readable = PyTuple_Size(plain) > 1 && PyTuple_Size(negated) > 1;
  for (PyObject* tensors : {plain, negated}) {
    for (Py_ssize_t i = 0; readable && i < PyTuple_Size(tensors); ++i) {
      readable = FindImpl(PyTuple_GetItem(tensors, i));
    }
  }
  PyErr_Clear();
  int places = 0;
  for (size_t word = 0; readable && word < kWords; ++word) {
    uint64_t without, with;
    if (!Same(plain, word, &without) || !Same(negated, word, &with)) continue;
    if (without == with) continue;
    places += with > without && std::has_single_bit(with ^ without) ? 1 : 2;
    word_ = word;
    bit_ = with ^ without;
  }
  if (places != 1) bit_ = 0;
}

}  // namespace lz::python
