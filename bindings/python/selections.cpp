// What Python hears of selections and fallbacks: counts, log lines, warnings.
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "call.h"

namespace lz::python {
namespace {

// Number of selections of each kernel, by {operation, kernel}. Hits are not counted.
struct Selections {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, uint64_t> counts;
};
Selections& Counted() {
  static auto* selections = new Selections;
  return *selections;
}

}  // namespace

PyObject* SelectionCounts() {
  const auto counts = [] {  // no Python under the lock: it may run other threads
    std::lock_guard lock(Counted().mutex);
    return Counted().counts;
  }();
  PyObject* list = PyList_New(0);
  for (const auto& [names, count] : counts) {
    PyObject* row =
        Py_BuildValue("ssK", names.first.c_str(), names.second.c_str(), static_cast<unsigned long long>(count));
    if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
    Py_XDECREF(row);
    if (!list) return nullptr;
  }
  return list;
}

void LogSelection(const Request& r, const Plan& plan) {
  {
    std::lock_guard lock(Counted().mutex);
    ++Counted().counts[{plan.kernel->operation, plan.kernel->id}];
  }
  Engine& engine = Engine::Get();
  if (!g_hooks.selected || (!plan.uses_fallback() && !engine.LogsSelections(r.policy))) return;
  PyObject* libraries = plan.uses_fallback() ? PyList_New(0) : Py_NewRef(Py_None);
  std::string platform;
  if (plan.uses_fallback()) {
    const ReferenceUse use = engine.ReferenceUseOf(plan);
    platform = kPlatformNames[size_t(use.platform)];
    for (const std::string& name : use.libraries) {
      PyObject* text = PyUnicode_FromString(name.c_str());
      if (text) PyList_Append(libraries, text);
      Py_XDECREF(text);
    }
  }
  PyObject* result = PyObject_CallFunction(g_hooks.selected, "sssO", plan.kernel->operation.c_str(),
                                           plan.kernel->id.c_str(), platform.c_str(), libraries);
  if (!result) ClearHookError();
  Py_XDECREF(result);
  Py_XDECREF(libraries);
}

void WarnFallback(const Request& r, const Plan& plan, const Plan& answered, const std::string& why) {
  if (!g_hooks.failed) return;
  const std::string text = plan.kernel->id + " failed" + (why.empty() ? "" : " (" + why + ")") + ", " +
                           answered.kernel->id + " has answered";
  const std::string name(r.op->name());
  PyObject* result = PyObject_CallFunction(g_hooks.failed, "ss", name.c_str(), text.c_str());
  if (!result) PyErr_Clear();
  Py_XDECREF(result);
}

}  // namespace lz::python
