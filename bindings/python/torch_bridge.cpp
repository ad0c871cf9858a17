#include "torch_bridge.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "core/limits.h"
#include "core/tensor.h"
#include "dlpack_exchange.h"
#include "negative_bit.h"
#include "platform/cuda_driver.h"

namespace lz::python {
namespace {

// The C function of a Python builtin, called without the interpreter.
struct Builtin {
  PyCFunction function = nullptr;
  PyObject* self = nullptr;
  int flags = 0;
  explicit operator bool() const { return function != nullptr; }
  void Set(PyObject* object) {
    if (!object) return;
    function = PyCFunction_GetFunction(object);
    if (!function) {
      PyErr_Clear();
      return;
    }
    self = PyCFunction_GetSelf(object);
    flags = PyCFunction_GetFlags(object);
  }
};

struct Torch {
  PyTypeObject* tensor = nullptr;
  PyTypeObject* parameter = nullptr;
  const ExchangeApi* exchange = nullptr;
  PyObject* dtypes[size_t(DType::kCount)] = {};
  PyObject* empty = nullptr;
  Builtin empty_strided_cpu, empty_strided_cuda, num_dispatch_modes, num_function_modes, is_grad_enabled;
  Builtin increment_version;
  NegativeBit negative;
  PyObject* increment_version_object = nullptr;
  getter requires_grad = nullptr;
  void* requires_grad_closure = nullptr;
  bool (*grad_enabled)() = nullptr;
  bool (*function_mode_enabled)() = nullptr;
  int (*num_threads)() = nullptr;
  int32_t (*parallel_for)(int64_t, int64_t, int64_t, lz_parallel_body, void*) = nullptr;
  PyObject* forward_ad = nullptr;  // the module's dict
  PyObject* current_level = nullptr;
  PyObject* minus_one = nullptr;
  bool has_states = false;
  uint64_t plain[2] = {}, inference[2] = {};
};
Torch g;

// c10's thread-local {included, excluded} dispatch keys.
const uint64_t* DispatchKeys() {
  static thread_local const uint64_t* keys = [] {
    void* c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    return c10 ? static_cast<const uint64_t*>(dlsym(c10, "_ZN3c104impl26raw_local_dispatch_key_setE")) : nullptr;
  }();
  return keys;
}

// A new reference to a dotted attribute, or nullptr without an error.
PyObject* Attribute(PyObject* object, const char* dotted) {
  Py_IncRef(object);
  char part[64];
  while (object && *dotted) {
    const char* dot = std::strchr(dotted, '.');
    const size_t length = dot ? size_t(dot - dotted) : std::strlen(dotted);
    std::memcpy(part, dotted, length);
    part[length] = 0;
    PyObject* next = PyObject_GetAttrString(object, part);
    Py_DecRef(object);
    object = next;
    dotted += length + (dot != nullptr);
  }
  if (!object) PyErr_Clear();
  return object;
}

bool IsNonZero(const Builtin& b) {
  PyObject* r = b.function(b.self, nullptr);
  const bool yes = r && PyObject_IsTrue(r) == 1;
  Py_XDECREF(r);
  return yes;
}

bool FindExchange(PyObject* type) {
  PyObject* capsule = Attribute(type, "__dlpack_c_exchange_api__");
  if (!capsule) return false;
  auto* header = static_cast<ExchangeHeader*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  Py_DecRef(capsule);
  while (header && header->version.major != kDlpackMajor) header = header->previous;
  g.exchange = reinterpret_cast<const ExchangeApi*>(header);
  PyErr_Clear();
  return g.exchange && g.exchange->dltensor_from_py_object;
}

void FindRequiresGrad(PyObject* base) {
  auto* rows = static_cast<PyGetSetDef*>(PyType_GetSlot(reinterpret_cast<PyTypeObject*>(base), Py_tp_getset));
  for (; rows && rows->name; ++rows) {
    if (std::strcmp(rows->name, "requires_grad") == 0) {
      g.requires_grad = rows->get;
      g.requires_grad_closure = rows->closure;
    }
  }
}

PyObject* Ints(const int64_t* v, int n) {
  PyObject* t = PyTuple_New(n);
  for (int i = 0; t && i < n; ++i) PyTuple_SetItem(t, i, PyLong_FromLongLong(v[i]));
  return t;
}

// (sizes, strides, dtype) of a row-major tensor as Python objects, borrowed: the last shapes are kept, because an
// operation is usually called again with the same ones.
PyObject* EmptyArguments(const int64_t* shape, int ndim, DType dtype) {
  struct Known {
    PyObject* args = nullptr;
    DType dtype{};
    int ndim = 0;
    int64_t shape[kMaxRank];
  };
  static Known known[8];
  static unsigned next = 0;
  for (const Known& k : known) {
    if (k.args && k.dtype == dtype && k.ndim == ndim && std::equal(shape, shape + ndim, k.shape)) return k.args;
  }
  int64_t strides[kMaxRank], step = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
  PyObject *sizes = Ints(shape, ndim), *steps = Ints(strides, ndim);
  PyObject* args = sizes && steps ? PyTuple_Pack(3, sizes, steps, g.dtypes[size_t(dtype)]) : nullptr;
  Py_XDECREF(sizes);
  Py_XDECREF(steps);
  if (!args) return nullptr;
  Known& k = known[next++ % std::size(known)];
  Py_XDECREF(k.args);
  k = {.args = args, .dtype = dtype, .ndim = ndim};
  std::copy_n(shape, ndim, k.shape);
  return args;
}

// torch.empty(shape, dtype=, device="cuda:i"), if no C function is known.
PyObject* NewByCall(const int64_t* shape, int ndim, DType dtype, lz_device device) {
  PyObject* sizes = Ints(shape, ndim);
  PyObject* args = PyTuple_Pack(1, sizes);
  PyObject* kwargs = PyDict_New();
  PyObject* where = IsCpu(device) ? PyUnicode_FromString("cpu") : PyUnicode_FromFormat("cuda:%d", device.id);
  PyDict_SetItemString(kwargs, "dtype", g.dtypes[size_t(dtype)]);
  PyDict_SetItemString(kwargs, "device", where);
  PyObject* r = PyObject_Call(g.empty, args, kwargs);
  Py_DecRef(where);
  Py_DecRef(sizes);
  Py_DecRef(args);
  Py_DecRef(kwargs);
  return r;
}

}  // namespace

bool TorchAttached() { return g.tensor != nullptr; }
bool IsTensor(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return type == g.tensor || type == g.parameter;
}

namespace {
bool HasFunctionMode() {
  if (g.function_mode_enabled) return g.function_mode_enabled();
  return g.num_function_modes && IsNonZero(g.num_function_modes);
}
}  // namespace

bool ModesAllowFastPath() {
  if (HasFunctionMode()) return false;
  // Forward-mode AD keeps its level in a module global, -1 outside; small integers are singletons.
  if (g.forward_ad && PyDict_GetItemWithError(g.forward_ad, g.current_level) != g.minus_one) return false;
  if (g.has_states) {
    const uint64_t* k = DispatchKeys();
    return !((k[0] ^ g.plain[0]) | (k[1] ^ g.plain[1])) || !((k[0] ^ g.inference[0]) | (k[1] ^ g.inference[1]));
  }
  return !g.num_dispatch_modes || !IsNonZero(g.num_dispatch_modes);
}

bool GradEnabled() {
  if (g.grad_enabled) return g.grad_enabled();
  return !g.is_grad_enabled || IsNonZero(g.is_grad_enabled);
}

bool RequiresGrad(PyObject* tensor) {
  PyObject* r = g.requires_grad ? g.requires_grad(tensor, g.requires_grad_closure)
                                : PyObject_GetAttrString(tensor, "requires_grad");
  const bool yes = r != Py_False;
  Py_XDECREF(r);
  return yes;
}

bool ReadTensor(PyObject* tensor, lz_tensor* out) {
  if (g.exchange->dltensor_from_py_object(tensor, out) != 0) {
    PyErr_Clear();
    return false;
  }
  if (out->data) return !g.negative.IsSet(tensor);
  for (int i = 0; i < out->ndim; ++i) {
    if (out->shape[i] == 0) return true;
  }
  return false;  // exactly torch.Tensor, but without memory: functional wrappers, zero tensors
}

bool CurrentStream(lz_device device, void** stream) {
  *stream = nullptr;
  return IsCpu(device) || g.exchange->current_work_stream(device.type, device.id, stream) == 0;
}

PyObject* NewTensor(const int64_t* shape, int ndim, DType dtype, lz_device device) {
  const Builtin& f = IsCpu(device) ? g.empty_strided_cpu : g.empty_strided_cuda;
  // The CUDA function allocates on the current device.
  if (!f || !g.dtypes[size_t(dtype)] || (device.type == 2 && CurrentCudaDevice() != device.id)) {
    return NewByCall(shape, ndim, dtype, device);
  }
  PyObject* args = EmptyArguments(shape, ndim, dtype);
  if (!args) return nullptr;
  Py_IncRef(args);  // another thread may replace it
  PyObject* r;
  if (f.flags & METH_FASTCALL) {
    using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
    PyObject* const items[] = {PyTuple_GetItem(args, 0), PyTuple_GetItem(args, 1), PyTuple_GetItem(args, 2)};
    r = reinterpret_cast<Fast>(reinterpret_cast<void*>(f.function))(f.self, items, 3);
  } else {
    r = f.function(f.self, args);
  }
  Py_DecRef(args);
  return r;
}

bool BumpVersions(PyObject* const* tensors, Py_ssize_t count) {
  PyObject* tuple = PyTuple_New(count);
  for (Py_ssize_t i = 0; tuple && i < count; ++i) {
    Py_IncRef(tensors[i]);
    PyTuple_SetItem(tuple, i, tensors[i]);
  }
  PyObject* done = nullptr;
  if (tuple) {
    const Builtin& f = g.increment_version;
    done = f && f.flags == METH_O ? f.function(f.self, tuple)
                                  : PyObject_CallFunctionObjArgs(g.increment_version_object, tuple, nullptr);
  }
  Py_XDECREF(tuple);
  Py_XDECREF(done);
  return done != nullptr;
}

PyObject* TensorOver(const lz_tensor& view, void* owner, void (*release)(void* owner)) {
  struct Lent {
    ManagedTensor managed;
    int64_t shape[kMaxRank], strides[kMaxRank];
    void* owner;
    void (*release)(void*);
  };
  auto* lent = new Lent{.owner = owner, .release = release};
  std::copy_n(view.shape, view.ndim, lent->shape);
  std::copy_n(view.strides, view.ndim, lent->strides);
  lent->managed = {.version = {kDlpackMajor, 0},
                   .manager = lent,
                   .deleter =
                       [](ManagedTensor* self) {
                         auto* mine = static_cast<Lent*>(self->manager);
                         mine->release(mine->owner);
                         delete mine;
                       },
                   .flags = 0,
                   .tensor = view};
  lent->managed.tensor.shape = lent->shape;
  lent->managed.tensor.strides = lent->strides;
  void* object = nullptr;
  if (!g.exchange->managed_tensor_to_py_object) {
    PyErr_SetString(PyExc_RuntimeError, "this torch has no DLPack exchange API to make tensors with");
  } else if (g.exchange->managed_tensor_to_py_object(&lent->managed, &object) == 0) {
    return static_cast<PyObject*>(object);
  }
  lent->managed.deleter(&lent->managed);
  return nullptr;
}

lz_parallel TorchParallel() {
  // libgomp can hang in a forked child whose parent used its threads.
  static std::atomic<bool> forked{false};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
  (void)registered;
  if (!g.parallel_for || forked.load(std::memory_order_relaxed)) return {nullptr, nullptr, 1};
  const auto run = [](void*, int64_t begin, int64_t end, int64_t grain, lz_parallel_body body, void* context) {
    g.parallel_for(begin, end, grain, body, context);
  };
  return {run, nullptr, g.num_threads ? g.num_threads() : 1};
}

PyObject* DispatchKeyState(PyObject*, PyObject*) {
  const uint64_t* k = DispatchKeys();
  if (!k) Py_RETURN_NONE;
  return Py_BuildValue("KK", static_cast<unsigned long long>(k[0]), static_cast<unsigned long long>(k[1]));
}

PyObject* Attach(PyObject*, PyObject* args) {
  PyObject *torch, *states, *plain, *negated;
  if (!PyArg_ParseTuple(args, "OO(O!O!)", &torch, &states, &PyTuple_Type, &plain, &PyTuple_Type, &negated))
    return nullptr;
  g = Torch();
  PyObject* tensor = Attribute(torch, "Tensor");
  if (!tensor || !FindExchange(tensor)) {
    PyErr_SetString(PyExc_ImportError, "this torch has no DLPack exchange API; LayerZero needs torch >= 2.11");
    return nullptr;
  }
  g.parameter = reinterpret_cast<PyTypeObject*>(Attribute(torch, "nn.Parameter"));
  g.empty = Attribute(torch, "empty");
  g.empty_strided_cpu.Set(Attribute(torch, "_C._dynamo.guards._empty_strided_cpu"));
  g.empty_strided_cuda.Set(Attribute(torch, "_C._dynamo.guards._empty_strided_cuda"));
  g.num_dispatch_modes.Set(Attribute(torch, "_C._len_torch_dispatch_stack"));
  g.num_function_modes.Set(Attribute(torch, "_C._len_torch_function_stack"));
  g.increment_version_object = Attribute(torch, "_C._increment_version");
  g.increment_version.Set(g.increment_version_object);
  g.is_grad_enabled.Set(Attribute(torch, "is_grad_enabled"));
  for (size_t i = 1; i < size_t(DType::kCount); ++i) {
    g.dtypes[i] = Attribute(torch, std::string(kDTypes[i].name).c_str());
  }
  if (PyObject* base = Attribute(torch, "_C.TensorBase")) {
    FindRequiresGrad(base);
    g.negative.Find(base, plain, negated);
  }
  if (PyObject* module = Attribute(torch, "autograd.forward_ad")) {
    g.current_level = PyUnicode_InternFromString("_current_level");
    g.minus_one = PyLong_FromLong(-1);
    PyObject* dict = PyModule_GetDict(module);
    if (dict && PyDict_GetItemWithError(dict, g.current_level)) g.forward_ad = dict;
  }
  if (void* cpu = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD)) {
    g.grad_enabled = reinterpret_cast<bool (*)()>(dlsym(cpu, "aoti_torch_grad_mode_is_enabled"));
    g.function_mode_enabled = reinterpret_cast<bool (*)()>(dlsym(cpu, "_ZN2at4impl27torch_function_mode_enabledEv"));
    g.num_threads = reinterpret_cast<int (*)()>(dlsym(cpu, "_ZN2at15get_num_threadsEv"));
    g.parallel_for = reinterpret_cast<decltype(g.parallel_for)>(dlsym(cpu, "torch_parallel_for"));
  }
  if (states != Py_None) {
    unsigned long long p0, p1, i0, i1;
    if (!PyArg_ParseTuple(states, "(KK)(KK)", &p0, &p1, &i0, &i1)) return nullptr;
    g.plain[0] = p0, g.plain[1] = p1, g.inference[0] = i0, g.inference[1] = i1;
    g.has_states = DispatchKeys() != nullptr;
  }
  g.tensor = reinterpret_cast<PyTypeObject*>(tensor);  // last: it enables the fast path
  return PyBool_FromLong(g.negative.Found());
}

}  // namespace lz::python
