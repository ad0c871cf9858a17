#include "gil.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

namespace lz::python {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(5);  // of the end with first calls, and of first calls with the end
constexpr useconds_t kPause = 1000;                  // microseconds

std::atomic<int> g_first_calls{0};
thread_local int t_first_calls = 0;  // of this thread, one within another
std::atomic<pid_t> g_ending{0};      // the thread that ends the process; 0: none does
std::atomic<Clock::rep> g_end_began{0};

[[noreturn]] void Stop() {
  while (true) pause();
}

template <class F>
F FunctionOf(const char* name, const char* older) {
  void* found = dlsym(RTLD_DEFAULT, name);
  return reinterpret_cast<F>(found ? found : dlsym(RTLD_DEFAULT, older));
}

bool IsFinalizing() {
  static const auto is_finalizing = FunctionOf<int (*)()>("Py_IsFinalizing", "_Py_IsFinalizing");  // from 3.13 on
  return is_finalizing && is_finalizing();
}

bool HoldsGil() {
  static const auto current =
      FunctionOf<PyThreadState* (*)()>("PyThreadState_GetUnchecked", "_PyThreadState_UncheckedGet");  // from 3.13 on
  PyThreadState* const state = current ? current() : nullptr;
  return state && state == PyGILState_GetThisThreadState();
}

// Stops this thread where what it runs is unwound instead of returning. A destructor, since C++ libraries differ in the
// name under which a handler could catch pthread_exit.
template <class F>
auto StopInsteadOfUnwinding(const F& call) {
  struct Guard {
    ~Guard() {
      if (!returned) Stop();
    }
    bool returned = false;
  } guard;
  auto result = call();
  guard.returned = true;
  return result;
}

bool IsOver() { return (Clock::now().time_since_epoch().count() - g_end_began) > Clock::duration(kPatience).count(); }

// Another thread is about to end the process. Where it does not come to that (it called atexit's functions and went on,
// or waits for this thread in one of them), this one goes on.
void WaitForEnd() {
  const ReleasedGil released;
  while (g_ending != 0 && !IsOver()) {
    if (IsFinalizing()) Stop();
    usleep(kPause);
  }
  g_ending = 0;
}

}  // namespace

void StopIfUnwound() {
  if (IsFinalizing() && gettid() != getpid() && !HoldsGil()) Stop();
}

Gil::Gil() : state_(StopInsteadOfUnwinding(PyGILState_Ensure)) {}
Gil::~Gil() {
  StopIfUnwound();
  PyGILState_Release(state_);
}

void ReleasedGil::Restore() {
  StopInsteadOfUnwinding([this] { return PyEval_RestoreThread(state_), true; });
}

FirstCall::FirstCall() {
  const pid_t ending = g_ending;
  if (t_first_calls == 0 && ending != 0 && ending != gettid()) WaitForEnd();
  ++t_first_calls;
  ++g_first_calls;
}
FirstCall::~FirstCall() {
  --t_first_calls;
  --g_first_calls;
}

void CountFirstCallsInChildren() {
  pthread_atfork(nullptr, nullptr, [] {
    g_first_calls = t_first_calls;
    g_ending = 0;
  });
}

PyObject* End(PyObject*, PyObject*) {
  if (g_ending.exchange(gettid()) != gettid()) g_end_began = Clock::now().time_since_epoch().count();
  return PyBool_FromLong(g_first_calls > t_first_calls && !IsOver());
}

}  // namespace lz::python
