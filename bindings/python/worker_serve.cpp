// The worker's side: runs calls until a message comes that is none.
#include <cstring>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "torch_bridge.h"
#include "worker.h"

namespace lz::python {
namespace {

class ServedCall {
 public:
  ServedCall(const ChannelPtr& channel, PyObject* side) : channel_(channel), c_(*channel), side_(side) {}
  ~ServedCall() {
    Py_XDECREF(arguments_);
    for (PyObject* object : kept_) Py_DecRef(object);
  }
  ServedCall(const ServedCall&) = delete;
  ServedCall& operator=(const ServedCall&) = delete;

  // Answers the request in `incoming`. False with a Python error: the parent has ended, or broke the protocol.
  bool Answer();

 private:
  // nullptr with an error of the call, not of the protocol.
  PyObject* Result();
  bool MakeArguments();
  bool SetThreads();
  bool Collect(PyObject* result);
  bool CollectOne(PyObject* result);
  bool MakeRoom(uint64_t need);
  void Place();
  bool Finish();
  bool SendError();

  const ChannelPtr& channel_;
  Channel& c_;
  PyObject* side_;
  std::string request_;
  worker::Call call_;
  worker::Answer answer_;
  PyObject* arguments_ = nullptr;
  std::vector<PyObject*> kept_;   // results, and what values refer to
  std::vector<lz_tensor> views_;  // of results on the CPU, in order
  uint64_t need_ = 0;             // bytes that they take
  bool has_device_ = false;
};

bool ServedCall::MakeArguments() {
  arguments_ = PyTuple_New(Py_ssize_t(call_.arguments.size()));
  if (!arguments_) return false;
  for (size_t i = 0; i < call_.arguments.size(); ++i) {
    const worker::Value& value = call_.arguments[i];
    PyObject* object = nullptr;
    if (value.tag == worker::Value::Tag::kHost) {
      const auto bytes = worker::BytesWithin(value.place, worker::kDataAt, c_.size);
      if (!bytes.ok()) return RaiseWorkerError(bytes.status()) != nullptr;
      worker::Place place = value.place;
      if (*bytes == 0) place.offset = worker::kDataAt;
      object = ViewAt(channel_, place);
    } else if (value.tag == worker::Value::Tag::kDevice) {
      has_device_ = true;
      object = OpenOnDevice(side_, value);
    } else {
      object = PlainObject(value);
    }
    if (!object) return false;
    PyTuple_SetItem(arguments_, Py_ssize_t(i), object);
  }
  return true;
}

bool ServedCall::SetThreads() {
  if (call_.threads == 0 || call_.threads == TorchParallel().num_threads) return true;
  PyObject* done = PyObject_CallMethod(side_, "set_threads", "i", int(call_.threads));
  Py_XDECREF(done);
  return done != nullptr;
}

bool ServedCall::CollectOne(PyObject* result) {
  worker::Value& value = answer_.results.emplace_back();
  if (result == Py_None) return true;
  lz_tensor view;
  PyObject* readable = result;
  if (!IsTensor(result) || !ReadTensor(result, &view) || IsComplex(view)) {
    readable = PyObject_CallMethod(side_, "plain", "(O)", result);
    if (!readable) return false;
    kept_.push_back(readable);
  }
  if (!IsTensor(readable) || !ReadTensor(readable, &view) || view.ndim > kMaxRank) {
    PyErr_SetString(g_worker_errors.unsendable, "wanted dense tensors of at most 8 dimensions as results");
    return false;
  }
  if (!IsCpu(view.device)) {
    has_device_ = true;
    PyObject* handle = nullptr;
    const bool shared = ShareOnDevice(side_, readable, view, &value, &handle);
    if (handle) kept_.push_back(handle);
    return shared;
  }
  value.tag = worker::Value::Tag::kHost;
  value.place = DensePlace(view, 0);
  views_.push_back(view);
  need_ += worker::Aligned(uint64_t(NumBytes(view)));
  return true;
}

bool ServedCall::Collect(PyObject* result) {
  answer_.is_tuple = PyTuple_Check(result);
  const Py_ssize_t count = answer_.is_tuple ? PyTuple_Size(result) : 1;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!CollectOne(answer_.is_tuple ? PyTuple_GetItem(result, i) : result)) return false;
  }
  return true;
}

// Asks the parent for room, if there is too little.
bool ServedCall::MakeRoom(uint64_t need) {
  if (need <= call_.room.bytes) return true;
  worker::Writer writer(c_.memory + c_.Writes() + 4);
  (void)writer.PutNeed(need);
  if (!SendMessage(c_, writer.size()) || ReceiveMessage(c_, -1) != Received::kMessage) return false;
  if (Status status = worker::Read(c_.incoming, &call_.room); !status.ok()) return RaiseWorkerError(status) != nullptr;
  const worker::Room& room = call_.room;
  if (room.bytes >= need && room.offset >= worker::kDataAt && room.offset <= c_.size &&
      room.bytes <= c_.size - room.offset) {
    return true;
  }
  PyErr_Format(g_worker_errors.protocol, "wanted %llu bytes for outputs, got %llu",
               static_cast<unsigned long long>(need), static_cast<unsigned long long>(room.bytes));
  return false;
}

void ServedCall::Place() {
  uint64_t at = call_.room.offset;
  size_t next = 0;
  for (worker::Value& value : answer_.results) {
    if (value.tag != worker::Value::Tag::kHost) continue;
    value.place.offset = at;
    CopyTo(c_, views_[next], value.place);
    at += worker::Aligned(uint64_t(NumBytes(views_[next++])));
  }
}

// Waits for the devices of the call: their errors are this call's.
bool ServedCall::Finish() {
  if (!has_device_) return true;
  PyObject* done = PyObject_CallMethod(side_, "finish", nullptr);
  Py_XDECREF(done);
  return done != nullptr;
}

PyObject* ServedCall::Result() {
  PyObject* functions = PyObject_GetAttrString(side_, "functions");
  PyObject* function = functions ? PyList_GetItem(functions, call_.function) : nullptr;  // borrowed
  Py_XDECREF(functions);
  if (!function) {
    PyErr_Clear();
    return PyErr_Format(g_worker_errors.protocol, "wanted the number of a function, got %d", int(call_.function));
  }
  if (!SetThreads() || !MakeArguments()) return nullptr;
  return PyObject_CallObject(function, arguments_);
}

// SystemExit too: a kernel must not end the worker.
bool ServedCall::SendError() {
  PyObject *type = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  if (trace) PyException_SetTraceback(error, trace);
  PyObject* message = PyObject_CallMethod(side_, "error_message", "O", error);
  for (PyObject* object : {type, error, trace}) Py_XDECREF(object);
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  bool sent = message && PyBytes_AsStringAndSize(message, &bytes, &size) == 0 && size_t(size) <= worker::kMaxMessage;
  if (sent) {
    std::memcpy(c_.memory + c_.Writes() + 4, bytes, size_t(size));
    sent = SendMessage(c_, size_t(size));
  }
  Py_XDECREF(message);
  return sent;
}

bool ServedCall::Answer() {
  request_ = c_.incoming;  // the answer to a need of room replaces it
  if (Status status = worker::Read(request_, &call_); !status.ok()) {
    (void)RaiseWorkerError(status);
    return SendError();
  }
  PyObject* result = Result();
  if (!result) return SendError();
  kept_.push_back(result);
  if (!Collect(result) || !Finish()) return SendError();
  if (!MakeRoom(need_)) return PyErr_ExceptionMatches(PyExc_EOFError) ? false : SendError();
  if (IsWorthWaking(need_)) c_.Ours().Announce(c_.send);
  Place();
  PyObject* warnings = PyObject_CallMethod(side_, "take_warnings", nullptr);
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (!warnings || PyBytes_AsStringAndSize(warnings, &bytes, &size) != 0) return SendError();
  kept_.push_back(warnings);
  answer_.warnings = {bytes, size_t(size)};
  worker::Writer writer(c_.memory + c_.Writes() + 4);
  if (Status status = writer.Put(answer_); !status.ok()) {
    (void)RaiseWorkerError(status);
    return SendError();
  }
  return SendMessage(c_, writer.size());
}

}  // namespace

PyObject* WorkerServe(PyObject*, PyObject* args) {
  PyObject *capsule, *side;
  if (!PyArg_ParseTuple(args, "OO", &capsule, &side)) return nullptr;
  const ChannelPtr* channel = ToChannel(capsule);
  if (!channel) return nullptr;
  Channel& c = **channel;
  while (true) {
    if (ReceiveMessage(c, -1) != Received::kMessage) return nullptr;
    if (worker::Kind(c.incoming[0]) != worker::Kind::kCall) {
      return PyBytes_FromStringAndSize(c.incoming.data(), Py_ssize_t(c.incoming.size()));
    }
    ServedCall call(*channel, side);
    if (!call.Answer()) return nullptr;
  }
}

}  // namespace lz::python
