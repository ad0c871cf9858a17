// Two processes that share memory wait for each other by a word in it: the waiting side spins for a short time, then
// says in a second word that it sleeps, and waits for a byte in a socket or pipe, which also says when the other side
// has ended.
#pragma once

#include <Python.h>

namespace lz::python {

// Python: doorbell_ring(word, value, sleeps, file): stores `value` at the address `word` after all earlier
// writes, and wakes the other side if the word at the address `sleeps` says that it sleeps. OSError: it has closed it.
PyObject* DoorbellRing(PyObject* self, PyObject* args);

// Python: doorbell_wait(word, seen, sleeps, file, spin_us, timeout_s): waits without the GIL until the value at the
// address `word` is not `seen`, and returns it; None after `timeout_s` seconds (negative: never). EOFError: the other
// side has ended. Signals are handled meanwhile. `sleeps` must be this side's own word.
PyObject* DoorbellWait(PyObject* self, PyObject* args);

}  // namespace lz::python
