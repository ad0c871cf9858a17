// The GIL in C++ code, also while the interpreter ends. From then on only the thread that ends the
// process gets the GIL. Before Python 3.14 every other thread that asks for it is unwound by pthread_exit: through
// noexcept functions, which calls std::terminate, and through destructors that need the GIL. Later versions stop such a
// thread where it is. Here it stops in all versions.
#pragma once

#include <Python.h>

namespace lz::python {

// Stops this thread for good where the interpreter ends and CPython unwinds it. The first line of every destructor that
// uses Python and may run while Python code that was called below it is unwound.
void StopIfUnwound();

// For code that runs without knowing whether it holds the GIL.
class Gil {
 public:
  Gil();
  ~Gil();
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Other threads may have the GIL meanwhile.
class ReleasedGil {
 public:
  explicit ReleasedGil(bool release = true) : state_(release ? PyEval_SaveThread() : nullptr) {}
  ~ReleasedGil() {
    if (state_) Restore();
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  void Restore();

  PyThreadState* state_;
};

// What only first calls do: imports, proofs, selections. They run torch's functions, and torch's own code aborts the
// process when the interpreter's end unwinds it. So the end waits for those that run, and others wait for the end.
class FirstCall {
 public:
  FirstCall();  // with the GIL
  ~FirstCall();
  FirstCall(const FirstCall&) = delete;
  FirstCall& operator=(const FirstCall&) = delete;
};

// A forked child has this thread alone.
void CountFirstCallsInChildren();

// Python: end() -> whether the end of the process has to wait for first calls of other threads; the interpreter is
// about to end.
PyObject* End(PyObject* self, PyObject* args);

}  // namespace lz::python
