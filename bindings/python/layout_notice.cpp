// Warns about a guessed layout once per place that calls with these shapes, and again after `layout.warn_interval_s`.
#include <time.h>

#include <unordered_map>

#include "call.h"

namespace lz::python {
namespace {

constexpr size_t kMostPlaces = 4096;  // beyond this number all are forgotten

class Mixed {
 public:
  void Add(uint64_t value) {
    hash_ = (hash_ ^ value) * 0x9fb21c651e98df25u;
    hash_ ^= hash_ >> 29;
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0x27d4eb2f165667c5u;
};

// True if the running Python code belongs to the program, not to a module that calls operations for it.
bool IsProgram() {
  static PyObject* const dunder_name = PyUnicode_InternFromString("__name__");
  PyObject* globals = PyEval_GetGlobals();
  PyObject* module = globals ? PyDict_GetItemWithError(globals, dunder_name) : nullptr;
  const char* text = module ? PyUnicode_AsUTF8AndSize(module, nullptr) : nullptr;
  PyErr_Clear();
  const std::string_view name = text ? text : "";
  return !name.empty() && !name.starts_with("layerzero.") && !name.starts_with("torch.");
}

// Adds file and line of the running code of the program; false: the caller must find it by other means.
bool AddPlace(Mixed* key) {
  PyFrameObject* frame = IsProgram() ? PyEval_GetFrame() : nullptr;
  if (!frame) return false;
  static PyObject* const file_name = PyUnicode_InternFromString("co_filename");
  auto* code = reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
  PyObject* file = PyObject_GetAttr(code, file_name);
  key->Add(file ? uint64_t(PyObject_Hash(file)) : 0);
  key->Add(uint64_t(PyFrame_GetLineNumber(frame)));
  Py_XDECREF(file);
  Py_DecRef(code);
  PyErr_Clear();
  return true;
}

uint64_t KeyOf(const Request& r, bool* known) {
  Mixed key;
  *known = AddPlace(&key);
  key.Add(r.op->index());
  key.Add(uint64_t(r.layout));
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    const lz_tensor& t = r.tensors[i];
    if (!r.op->input(i).layout || t.ndim < 0) continue;
    for (int32_t d = 0; d < t.ndim; ++d) key.Add(uint64_t(t.shape[d]));
  }
  return key.hash();
}

double Seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

}  // namespace

bool WarnGuessedLayout(const Request& r) {
  static auto* const said = new std::unordered_map<uint64_t, double>;  // time of the last warning, by place and shapes
  if (!g_hooks.guessed) return true;
  const double interval = Engine::Get().LayoutWarnInterval(r);
  bool known = false;
  const uint64_t key = KeyOf(r, &known);
  if (known) {
    const auto last = said->find(key);
    if (last != said->end() && Seconds() - last->second < interval) return true;
  }
  const std::string text = Engine::LayoutWarning(r);
  PyObject* done = PyObject_CallFunction(g_hooks.guessed, "sd", text.c_str(), interval);
  if (!done) return false;
  Py_DecRef(done);
  if (known) {
    if (said->size() >= kMostPlaces) said->clear();
    (*said)[key] = Seconds();
  }
  return true;
}

}  // namespace lz::python
