#include "guard.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "core/dtype.h"
#include "torch_bridge.h"

namespace lz::python {
namespace {

constexpr const char* kCapsule = "layerzero.guard";
constexpr int32_t kAxes = 5;  // weights have at most 5: those of convolutions (outputs, inputs, frames, rows, columns)
using AllSizes = std::array<int64_t, 1 + 2 * kAxes>;  // number of axes, their sizes, their strides

class Guard {
 public:
  bool AddSame(PyObject* pair) {
    PyObject *dict, *values;
    if (!PyArg_ParseTuple(pair, "O!O!", &PyDict_Type, &dict, &PyTuple_Type, &values)) return false;
    same_.push_back({Keep(dict), Keep(values)});
    return true;
  }
  bool AddMember(PyObject* triple) {
    PyObject *dict, *key, *value;
    if (!PyArg_ParseTuple(triple, "O!OO", &PyDict_Type, &dict, &key, &value)) return false;
    members_.push_back({Keep(dict), Keep(key), Keep(value)});
    return true;
  }
  bool AddTensor(PyObject* triple) {
    PyObject *dict, *key, *tensor;
    if (!PyArg_ParseTuple(triple, "O!OO", &PyDict_Type, &dict, &key, &tensor)) return false;
    lz_tensor view;
    if (!IsTensor(tensor) || !ReadTensor(tensor, &view) || view.ndim > kAxes) {
      PyErr_SetString(PyExc_TypeError, "guard: wanted plain tensors of at most five axes");
      return false;
    }
    tensors_.push_back({Keep(dict), Keep(key), Keep(tensor), First(view), DTypeOf(view), Sizes(view)});
    return true;
  }

  bool Unchanged() const {
    WarmUp();
    for (const auto& [dict, values] : same_) {
      PyObject *key, *value;
      Py_ssize_t at = 0, i = 0;
      if (PyDict_Size(dict) != PyTuple_Size(values)) return false;
      while (PyDict_Next(dict, &at, &key, &value)) {
        if (value != PyTuple_GetItem(values, i++)) return false;
      }
    }
    for (const Member& m : members_) {
      PyObject* value = PyDict_GetItemWithError(m.dict, m.key);
      if ((value ? value : Py_None) != m.value) return false;
    }
    for (const Tensor& t : tensors_) {
      lz_tensor view;
      if (PyDict_GetItemWithError(t.dict, t.key) != t.tensor || !ReadTensor(t.tensor, &view)) return false;
      if (First(view) != t.elements || DTypeOf(view) != t.dtype || Sizes(view) != t.sizes) return false;
    }
    return true;
  }

 private:
  struct Member {
    PyObject *dict, *key, *value;
  };
  struct Tensor {
    PyObject *dict, *key, *tensor;
    char* elements;
    DType dtype;
    AllSizes sizes;
  };
  static char* First(const lz_tensor& t) { return static_cast<char*>(t.data) + t.byte_offset; }
  static AllSizes Sizes(const lz_tensor& t) {
    AllSizes sizes{t.ndim};
    for (int32_t d = 0; d < t.ndim && d < kAxes; ++d) {
      sizes[1 + size_t(d)] = t.shape[d];
      sizes[1 + size_t(kAxes + d)] = t.strides[d];
    }
    return sizes;
  }
  PyObject* Keep(PyObject* object) {
    objects_.push_back(object);
    return object;
  }
  // A model's weights have evicted all of this from the caches since the last check, and each object is reached through
  // the previous one. So all objects are prefetched first, then the addresses that the words after their headers may
  // contain (a dictionary's keys, a tensor's implementation); prefetching an invalid address does nothing.
  void WarmUp() const {
    for (PyObject* object : objects_) __builtin_prefetch(object);
    for (PyObject* object : objects_) {
      if (!PyDict_Check(object) && !IsTensor(object)) continue;  // both are larger than the words that are read
      uintptr_t words[6];
      std::memcpy(words, object, sizeof(words));
      for (size_t i = 2; i < std::size(words); ++i) {
        for (uintptr_t line = 0; line < 256; line += 64) __builtin_prefetch(reinterpret_cast<void*>(words[i] + line));
      }
    }
  }

  std::vector<PyObject*> objects_;
  std::vector<std::pair<PyObject*, PyObject*>> same_;
  std::vector<Member> members_;
  std::vector<Tensor> tensors_;
};

bool AddAll(PyObject* list, Guard& guard, bool (Guard::*add)(PyObject*)) {
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    if ((guard.*add)(PyList_GetItem(list, i))) continue;
    return false;
  }
  return true;
}

PyObject* Make(PyObject*, PyObject* args) {
  PyObject *same, *members, *tensors;
  if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &same, &PyList_Type, &members, &PyList_Type, &tensors)) {
    return nullptr;
  }
  auto guard = std::make_unique<Guard>();
  if (!AddAll(same, *guard, &Guard::AddSame) || !AddAll(members, *guard, &Guard::AddMember) ||
      !AddAll(tensors, *guard, &Guard::AddTensor)) {
    return nullptr;
  }
  return PyCapsule_New(guard.release(), kCapsule,
                       [](PyObject* capsule) { delete static_cast<Guard*>(PyCapsule_GetPointer(capsule, kCapsule)); });
}

PyObject* Unchanged(PyObject*, PyObject* capsule) {
  const auto* guard = static_cast<const Guard*>(PyCapsule_GetPointer(capsule, kCapsule));
  return guard ? PyBool_FromLong(guard->Unchanged()) : nullptr;
}

}  // namespace

PyMethodDef kGuardMethods[] = {
    {"guard", &Make, METH_VARARGS, nullptr},
    {"unchanged", &Unchanged, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lz::python
