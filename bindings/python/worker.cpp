#include "worker.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "gil.h"

namespace lz::python {

WorkerErrors g_worker_errors;

namespace {

using Clock = worker::Doorbell::Clock;

constexpr const char* kCapsule = "layerzero.worker_channel";
constexpr auto kSlice = std::chrono::milliseconds(100);  // between two looks at Python's signals

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Channel::~Channel() { munmap(memory, size); }

PyObject* RaiseWorkerError(const Status& status) {
  PyErr_SetString(status.code() == StatusCode::kWrongType ? g_worker_errors.unsendable : g_worker_errors.protocol,
                  status.Text().c_str());
  return nullptr;
}

const ChannelPtr* ToChannel(PyObject* capsule) {
  return static_cast<const ChannelPtr*>(PyCapsule_GetPointer(capsule, kCapsule));
}

bool SendMessage(Channel& c, size_t size) {
  const auto length = uint32_t(size);
  std::memcpy(c.memory + c.Writes(), &length, sizeof(length));
  if (c.Ours().Ring(++c.sent, c.send)) return true;
  PyErr_SetFromErrno(PyExc_OSError);
  return false;
}

namespace {

// Takes the message with the number that the other side has published.
bool Take(Channel& c) {
  const uint64_t number = c.Theirs().Number();
  if (!c.is_worker && number != c.received + 1) {
    PyErr_Format(g_worker_errors.protocol, "wanted response %llu, got %llu",
                 1 + static_cast<unsigned long long>(c.received), static_cast<unsigned long long>(number));
    return false;
  }
  c.received = number;
  uint32_t length = 0;
  std::memcpy(&length, c.memory + c.Reads(), sizeof(length));
  if (length == 0 || length > worker::kMaxMessage) {
    PyErr_Format(g_worker_errors.protocol, "wanted a message of 1 to %zu bytes, got %u", worker::kMaxMessage, length);
    return false;
  }
  c.incoming.assign(c.memory + c.Reads() + sizeof(length), length);  // its writer may change it meanwhile
  return true;
}

}  // namespace

Received ReceiveMessage(Channel& c, double seconds) {
  const Clock::time_point end = Clock::now() + Seconds(seconds < 0 ? 1e9 : std::min(seconds, 1e9));
  while (true) {
    const worker::Waited waited = [&] {
      const ReleasedGil released;
      return c.Theirs().Wait(c.received, c.receive, c.spin, c.announced, std::min(end, Clock::now() + kSlice));
    }();
    if (waited == worker::Waited::kChanged) return Take(c) ? Received::kMessage : Received::kError;
    if (waited == worker::Waited::kEnded) {
      PyErr_SetString(PyExc_EOFError, "the other process has ended");
      return Received::kError;
    }
    if (PyErr_CheckSignals() != 0) return Received::kError;
    if (Clock::now() >= end) return Received::kTimeout;
  }
}

namespace {

PyObject* WorkerOpen(PyObject*, PyObject* args) {
  int file, receive, send, is_worker;
  unsigned long long size;
  double spin_us;
  if (!PyArg_ParseTuple(args, "iKiidp", &file, &size, &receive, &send, &spin_us, &is_worker)) return nullptr;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
  auto channel = std::make_shared<Channel>(static_cast<char*>(memory), size);
  channel->is_worker = is_worker != 0;
  channel->receive = receive;
  channel->send = send;
  channel->spin = worker::Patience(Seconds(spin_us * 1e-6));
  channel->announced = worker::Patience(Seconds(4 * spin_us * 1e-6));  // 4 MiB are copied meanwhile
  if (is_worker) std::memcpy(channel->memory + worker::kMagicWord, &worker::kMagic, sizeof(worker::kMagic));
  auto* owner = new ChannelPtr(std::move(channel));
  PyObject* capsule = PyCapsule_New(
      owner, kCapsule, [](PyObject* self) { delete static_cast<ChannelPtr*>(PyCapsule_GetPointer(self, kCapsule)); });
  if (!capsule) delete owner;
  return capsule;
}

PyObject* SetErrors(PyObject*, PyObject* args) {
  WorkerErrors& e = g_worker_errors;
  WorkerErrors given;
  if (!PyArg_ParseTuple(args, "OOOO", &given.protocol, &given.unsendable, &given.full, &given.hung)) return nullptr;
  for (PyObject* one : {given.protocol, given.unsendable, given.full, given.hung}) Py_IncRef(one);
  e = given;
  Py_RETURN_NONE;
}

PyObject* Send(PyObject*, PyObject* args) {
  PyObject* capsule;
  const char* bytes;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "Oy#", &capsule, &bytes, &size)) return nullptr;
  const ChannelPtr* channel = ToChannel(capsule);
  if (!channel) return nullptr;
  if (size_t(size) > worker::kMaxMessage) {
    return PyErr_Format(g_worker_errors.unsendable, "wanted a message of at most %zu bytes, got %zd",
                        worker::kMaxMessage, size);
  }
  std::memcpy((*channel)->memory + (*channel)->Writes() + 4, bytes, size_t(size));
  if (!SendMessage(**channel, size_t(size))) return nullptr;
  Py_RETURN_NONE;
}

PyObject* Receive(PyObject*, PyObject* args) {
  PyObject* capsule;
  double seconds;
  if (!PyArg_ParseTuple(args, "Od", &capsule, &seconds)) return nullptr;
  const ChannelPtr* channel = ToChannel(capsule);
  if (!channel) return nullptr;
  Channel& c = **channel;
  switch (ReceiveMessage(c, seconds)) {
    case Received::kError: return nullptr;
    case Received::kTimeout: Py_RETURN_NONE;
    case Received::kMessage: break;
  }
  if (!c.is_worker && std::memcmp(c.memory + worker::kMagicWord, &worker::kMagic, sizeof(worker::kMagic)) != 0) {
    PyErr_SetString(g_worker_errors.protocol, "wanted the protocol's number in the shared memory");
    return nullptr;
  }
  return PyBytes_FromStringAndSize(c.incoming.data(), Py_ssize_t(c.incoming.size()));
}

PyObject* Pin(PyObject*, PyObject* capsule) {
  const ChannelPtr* channel = ToChannel(capsule);
  if (!channel) return nullptr;
  (*channel)->blocks.Pin();
  Py_RETURN_NONE;
}

PyObject* State(PyObject*, PyObject* capsule) {
  const ChannelPtr* channel = ToChannel(capsule);
  if (!channel) return nullptr;
  const Channel& c = **channel;
  return Py_BuildValue("{s:O,s:O,s:K,s:K}", "busy", c.is_busy ? Py_True : Py_False, "pinned",
                       c.blocks.is_pinned() ? Py_True : Py_False, "held",
                       static_cast<unsigned long long>(c.blocks.held()), "free_parts",
                       static_cast<unsigned long long>(c.blocks.free_parts()));
}

// worker_holds(channel, address): whether it is in the shared memory.
PyObject* IsInside(PyObject*, PyObject* args) {
  PyObject* capsule;
  unsigned long long address;
  if (!PyArg_ParseTuple(args, "OK", &capsule, &address)) return nullptr;
  const ChannelPtr* channel = ToChannel(capsule);
  if (!channel) return nullptr;
  return PyBool_FromLong((*channel)->Holds(reinterpret_cast<const void*>(uintptr_t(address))));
}

}  // namespace

PyMethodDef kWorkerMethods[] = {
    {"worker_open", WorkerOpen, METH_VARARGS,
     "worker_open(file, bytes, receive, send, spin_us, is_worker): one side of the memory shared with a worker."},
    {"worker_errors", SetErrors, METH_VARARGS, "worker_errors(protocol, unsendable, full, hung): exception types."},
    {"worker_send", Send, METH_VARARGS, "worker_send(channel, message)"},
    {"worker_receive", Receive, METH_VARARGS,
     "worker_receive(channel, seconds): the next message, or None after the time; below 0: no limit."},
    {"worker_call", WorkerCall, METH_VARARGS,
     "worker_call(channel, side, function, arguments, written, seconds): the function's result."},
    {"worker_serve", WorkerServe, METH_VARARGS,
     "worker_serve(channel, side): answers calls; returns the next message that is none."},
    {"worker_pin", Pin, METH_O, "worker_pin(channel): blocks in use are never used again."},
    {"worker_state", State, METH_O, "worker_state(channel): busy, pinned, held bytes, free parts."},
    {"worker_holds", IsInside, METH_VARARGS, "worker_holds(channel, address): whether it is in the shared memory."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace lz::python
