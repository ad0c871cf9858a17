// Python objects and tensors as values of messages, and back.
#include <algorithm>

#include "core/tensor.h"
#include "gil.h"
#include "torch_bridge.h"
#include "worker.h"
#include "worker/copy.h"

namespace lz::python {
namespace {

constexpr int64_t kLarge = 256 * 1024;  // bytes: copied with the GIL released

char* First(const lz_tensor& t) { return static_cast<char*>(t.data) + t.byte_offset; }

PyObject* Numbers(const int64_t* numbers, int count) {
  PyObject* tuple = PyTuple_New(count);
  for (int i = 0; tuple && i < count; ++i) PyTuple_SetItem(tuple, i, PyLong_FromLongLong(numbers[i]));
  return tuple;
}

}  // namespace

worker::Place DensePlace(const lz_tensor& tensor, uint64_t offset) {
  worker::Place place{.dtype = tensor.dtype, .ndim = tensor.ndim, .offset = offset};
  std::copy_n(tensor.shape, tensor.ndim, place.shape);
  worker::SetDenseStrides(tensor, place.strides);
  return place;
}

bool PlaceInside(const Channel& channel, const lz_tensor& tensor, worker::Place* place) {
  if (!tensor.data || !channel.Holds(First(tensor))) return false;
  *place = {.dtype = tensor.dtype, .ndim = tensor.ndim, .offset = uint64_t(First(tensor) - channel.memory)};
  std::copy_n(tensor.shape, tensor.ndim, place->shape);
  std::copy_n(tensor.strides, tensor.ndim, place->strides);
  const auto bytes = worker::BytesWithin(*place, worker::kDataAt, channel.size);
  return bytes.ok() && *bytes > 0;
}

void CopyTo(Channel& channel, const lz_tensor& tensor, const worker::Place& place) {
  const ReleasedGil released(NumBytes(tensor) >= kLarge);
  worker::CopyDense(tensor, channel.memory + place.offset, place.strides, TorchParallel());
}

PyObject* TensorAt(const Channel& channel, worker::Place place, void* owner, void (*release)(void*)) {
  const lz_tensor view{.data = channel.memory + place.offset,
                       .device = {1, 0},
                       .ndim = place.ndim,
                       .dtype = place.dtype,
                       .shape = place.shape,
                       .strides = place.strides,
                       .byte_offset = 0};
  return TensorOver(view, owner, release);
}

PyObject* ViewAt(const ChannelPtr& channel, const worker::Place& place) {
  return TensorAt(*channel, place, new ChannelPtr(channel),
                  [](void* owner) { delete static_cast<ChannelPtr*>(owner); });
}

bool ReadPlain(PyObject* object, worker::Value* value) {
  using Tag = worker::Value::Tag;
  *value = {};
  if (object == Py_None) return true;
  if (PyBool_Check(object)) {
    value->tag = Tag::kBool;
    value->integer = object == Py_True;
    return true;
  }
  if (PyLong_Check(object)) {
    value->tag = Tag::kInt;
    value->integer = PyLong_AsLongLong(object);
    if (value->integer != -1 || !PyErr_Occurred()) return true;
    PyErr_SetString(g_worker_errors.unsendable, "wanted an integer of 64 bits, got a larger one");
    return false;
  }
  if (PyFloat_Check(object)) {
    value->tag = Tag::kFloat;
    value->real = PyFloat_AsDouble(object);
    return true;
  }
  if (!PyUnicode_Check(object)) return false;
  value->tag = Tag::kText;
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (!text) return false;
  value->text = {text, size_t(size)};
  return true;
}

PyObject* PlainObject(const worker::Value& value) {
  using Tag = worker::Value::Tag;
  switch (value.tag) {
    case Tag::kInt: return PyLong_FromLongLong(value.integer);
    case Tag::kFloat: return PyFloat_FromDouble(value.real);
    case Tag::kBool: return PyBool_FromLong(value.integer != 0);
    case Tag::kText: {
      PyObject* text = PyUnicode_FromStringAndSize(value.text.data(), Py_ssize_t(value.text.size()));
      if (!text) PyErr_SetString(g_worker_errors.protocol, "wanted a text in UTF-8, got other bytes");
      return text;
    }
    default: Py_RETURN_NONE;
  }
}

PyObject* OpenOnDevice(PyObject* side, const worker::Value& value) {
  const worker::Place& place = value.place;
  return PyObject_CallMethod(side, "open", "y#iiiNNK", value.text.data(), Py_ssize_t(value.text.size()),
                             int(place.dtype.code), int(place.dtype.bits), int(place.dtype.lanes),
                             Numbers(place.shape, place.ndim), Numbers(place.strides, place.ndim),
                             static_cast<unsigned long long>(place.offset));
}

bool ShareOnDevice(PyObject* side, PyObject* tensor, const lz_tensor& view, worker::Value* value, PyObject** handle) {
  value->tag = worker::Value::Tag::kDevice;
  value->place = {.dtype = view.dtype, .ndim = view.ndim};
  std::copy_n(view.shape, view.ndim, value->place.shape);
  std::copy_n(view.strides, view.ndim, value->place.strides);
  *handle = PyObject_CallMethod(side, "share", "O", tensor);
  unsigned long long offset = 0;
  const char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (!*handle || !PyArg_ParseTuple(*handle, "Ky#", &offset, &bytes, &size)) return false;
  value->place.offset = offset;
  value->text = {bytes, size_t(size)};
  return true;
}

}  // namespace lz::python
