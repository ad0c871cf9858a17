// The parent's side of a call: arguments into shared memory, a request, and tensors over the memory of the results.
#include <algorithm>
#include <atomic>
#include <vector>

#include "core/tensor.h"
#include "torch_bridge.h"
#include "worker.h"

namespace lz::python {
namespace {

constexpr uint64_t kFirstRoom = 64 * 1024;  // bytes for outputs of unknown size

// The block of a call's results: free once the last tensor over it is gone.
struct ResultBlock {
  ChannelPtr channel;
  uint64_t offset;
  std::atomic<int> tensors{1};

  static void Drop(void* self) {
    auto* mine = static_cast<ResultBlock*>(self);
    if (mine->tensors.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    mine->channel->blocks.ReleaseLater(mine->offset);
    delete mine;
  }
};

class ParentCall {
 public:
  ParentCall(const ChannelPtr& channel, PyObject* side, PyObject* arguments, uint64_t written)
      : channel_(channel), c_(*channel), side_(side), arguments_(arguments), written_(written) {}
  ~ParentCall() {
    for (uint64_t offset : held_) c_.blocks.Release(offset);
    for (PyObject* object : kept_) Py_DecRef(object);
  }
  ParentCall(const ParentCall&) = delete;
  ParentCall& operator=(const ParentCall&) = delete;

  PyObject* Run(uint16_t function, double seconds);

 private:
  struct Copy {
    lz_tensor tensor;
    worker::Place place;
    PyObject* written = nullptr;  // the caller's tensor, if the kernel writes it
  };

  bool ReadArgument(size_t i, PyObject* argument);
  bool ReadHost(size_t i, PyObject* argument, const lz_tensor& tensor);
  bool Refuse(const char* wanted, const char* got) {
    PyObject* none = PyObject_CallMethod(side_, "refuse", "ss", wanted, got);
    Py_XDECREF(none);
    return false;
  }
  bool Block(uint64_t bytes, uint64_t* offset);
  bool TakeRoom(uint64_t wanted);
  bool GiveRoom();
  bool Answer(double seconds);
  bool CopyBack();
  PyObject* Results(const worker::Answer& answer);
  PyObject* Result(const worker::Value& value, ResultBlock* block);

  const ChannelPtr& channel_;
  Channel& c_;
  PyObject *side_, *arguments_;
  uint64_t written_;
  worker::Call call_;
  std::vector<uint64_t> held_;
  std::vector<PyObject*> kept_;  // what values and copies refer to
  std::vector<Copy> copies_;
  uint64_t copied_ = 0;
  bool has_device_ = false;
};

bool ParentCall::Block(uint64_t bytes, uint64_t* offset) {
  const auto found = c_.blocks.Allocate(bytes);
  if (!found) {
    PyErr_Format(g_worker_errors.full, "wanted %llu bytes, got %llu of %llu", static_cast<unsigned long long>(bytes),
                 static_cast<unsigned long long>(c_.blocks.most()), static_cast<unsigned long long>(c_.size));
    return false;
  }
  held_.push_back(*found);
  *offset = *found;
  return true;
}

bool ParentCall::ReadHost(size_t i, PyObject* argument, const lz_tensor& tensor) {
  worker::Value& value = call_.arguments[i];
  value.tag = worker::Value::Tag::kHost;
  const bool is_written = written_ >> i & 1;
  if (written_ != 0) {  // a tensor that is passed twice is one there too
    for (const Copy& copy : copies_) {
      const lz_tensor& t = copy.tensor;
      if (t.data == tensor.data && t.byte_offset == tensor.byte_offset && t.ndim == tensor.ndim &&
          t.dtype.code == tensor.dtype.code && t.dtype.bits == tensor.dtype.bits &&
          std::equal(t.shape, t.shape + t.ndim, tensor.shape) &&
          std::equal(t.strides, t.strides + t.ndim, tensor.strides)) {
        value.place = copy.place;
        return true;
      }
    }
  }
  if (!is_written && PlaceInside(c_, tensor, &value.place)) return true;
  value.place = DensePlace(tensor, worker::kDataAt);
  const auto bytes = uint64_t(NumBytes(tensor));
  if (bytes > 0 && !Block(bytes, &value.place.offset)) return false;
  copies_.push_back({tensor, value.place, is_written ? argument : nullptr});
  copied_ += bytes;
  return true;
}

bool ParentCall::ReadArgument(size_t i, PyObject* argument) {
  lz_tensor tensor;
  PyObject* readable = argument;
  if (!IsTensor(argument) || !ReadTensor(argument, &tensor) || IsComplex(tensor)) {
    if (ReadPlain(argument, &call_.arguments[i])) return true;
    if (PyErr_Occurred()) return false;
    readable = PyObject_CallMethod(side_, "plain", "(O)", argument);  // refuses what is no tensor
    if (!readable) return false;
    kept_.push_back(readable);
    if (!IsTensor(readable) || !ReadTensor(readable, &tensor)) return Refuse("a dense tensor", "another one");
  }
  if (GradEnabled() && RequiresGrad(argument)) return Refuse("tensors without a gradient", "one that requires it");
  if (tensor.ndim > kMaxRank) return Refuse("at most 8 dimensions", "more");
  if (IsCpu(tensor.device)) return ReadHost(i, argument, tensor);
  if (tensor.device.type != 2) return Refuse("dense tensors on a CPU or CUDA device", "one on another device");
  has_device_ = true;
  PyObject* handle = nullptr;
  const bool shared = ShareOnDevice(side_, readable, tensor, &call_.arguments[i], &handle);
  if (handle) kept_.push_back(handle);
  return shared;
}

// Memory for outputs: as much as the function's last ones took, if there is so much.
bool ParentCall::TakeRoom(uint64_t wanted) {
  if (!Block(wanted, &call_.room.offset)) {
    if (wanted <= kFirstRoom) return false;
    PyErr_Clear();
    wanted = kFirstRoom;
    if (!Block(wanted, &call_.room.offset)) return false;
  }
  call_.room.bytes = std::max(worker::Aligned(wanted), worker::kAlignment);
  return true;
}

bool ParentCall::Answer(double seconds) {
  const Received received = ReceiveMessage(c_, seconds);
  if (received == Received::kTimeout) PyErr_SetNone(g_worker_errors.hung);
  return received == Received::kMessage;
}

// The outputs of the running call need more room.
bool ParentCall::GiveRoom() {
  uint64_t need = 0;
  if (Status status = worker::ReadNeed(c_.incoming, &need); !status.ok()) return RaiseWorkerError(status) != nullptr;
  if (need > c_.size) {
    PyErr_Format(g_worker_errors.protocol, "wanted a need of at most %llu bytes, got %llu",
                 static_cast<unsigned long long>(c_.size), static_cast<unsigned long long>(need));
    return false;
  }
  held_.erase(std::ranges::find(held_, call_.room.offset));
  c_.blocks.Release(call_.room.offset);
  const bool has_room = Block(need, &call_.room.offset);
  call_.room.bytes = has_room ? std::max(worker::Aligned(need), worker::kAlignment) : 0;
  if (has_room) c_.rooms[call_.function] = need;
  PyObject *type = nullptr, *error = nullptr, *trace = nullptr;
  if (!has_room) PyErr_Fetch(&type, &error, &trace);
  worker::Writer writer(c_.memory + c_.Writes() + 4);
  (void)writer.PutRoom(call_.room);
  const bool sent = SendMessage(c_, writer.size());
  if (!has_room) {  // the worker answers with an error of its own
    if (sent && Answer(60)) c_.is_busy = false;
    if (!PyErr_Occurred()) PyErr_Restore(type, error, trace);
    return false;
  }
  return sent;
}

bool ParentCall::CopyBack() {
  for (const Copy& copy : copies_) {
    if (!copy.written) continue;
    PyObject* view = ViewAt(channel_, copy.place);
    PyObject* done = view ? PyObject_CallMethod(copy.written, "copy_", "O", view) : nullptr;
    Py_XDECREF(view);
    Py_XDECREF(done);
    if (!done) return false;
  }
  return true;
}

PyObject* ParentCall::Result(const worker::Value& value, ResultBlock* block) {
  if (value.tag == worker::Value::Tag::kNone) Py_RETURN_NONE;
  if (value.tag == worker::Value::Tag::kDevice) return OpenOnDevice(side_, value);
  const bool is_empty =
      std::any_of(value.place.shape, value.place.shape + value.place.ndim, [](int64_t n) { return n == 0; });
  if (block && !is_empty) {
    block->tensors.fetch_add(1, std::memory_order_relaxed);
    return TensorAt(c_, value.place, block, &ResultBlock::Drop);
  }
  worker::Place place = value.place;
  if (is_empty) place.offset = worker::kDataAt;
  PyObject* view = ViewAt(channel_, place);
  PyObject* copy = view ? PyObject_CallMethod(view, "clone", nullptr) : nullptr;
  Py_XDECREF(view);
  return copy;
}

// The tensors of an answer. Those on the CPU are over the shared memory, unless more than half of it is in use.
PyObject* ParentCall::Results(const worker::Answer& answer) {
  const uint64_t end_of_room = call_.room.offset + call_.room.bytes;
  uint64_t end = call_.room.offset;
  for (const worker::Value& value : answer.results) {
    if (value.tag != worker::Value::Tag::kHost) continue;
    auto bytes = worker::BytesWithin(value.place, end, end_of_room);
    if (!bytes.ok()) return RaiseWorkerError(bytes.status());
    if (*bytes > 0) end = value.place.offset + worker::Aligned(*bytes);
  }
  ResultBlock* block = nullptr;
  if (end > call_.room.offset && 2 * c_.blocks.held() <= c_.size) {
    held_.erase(std::ranges::find(held_, call_.room.offset));
    c_.blocks.Shrink(call_.room.offset, end - call_.room.offset);
    block = new ResultBlock{.channel = channel_, .offset = call_.room.offset};
  }
  const auto count = Py_ssize_t(answer.results.size());
  PyObject* results = answer.is_tuple ? PyTuple_New(count) : nullptr;
  PyObject* one = nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    one = Result(answer.results[size_t(i)], block);
    if (!one) break;
    if (answer.is_tuple) PyTuple_SetItem(results, i, one);
  }
  if (block) ResultBlock::Drop(block);
  if (one || count == 0) return answer.is_tuple ? results : one;
  Py_XDECREF(results);
  return nullptr;
}

PyObject* ParentCall::Run(uint16_t function, double seconds) {
  const Py_ssize_t count = PyTuple_Size(arguments_);
  if (count > Py_ssize_t(worker::kMaxArguments)) {
    return PyErr_Format(g_worker_errors.unsendable, "wanted at most %zu arguments, got %zd", worker::kMaxArguments,
                        count);
  }
  call_.function = function;
  const lz_parallel threads = TorchParallel();
  call_.threads = uint16_t(std::clamp(threads.num_threads, 1, 65535));
  call_.arguments.resize(size_t(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!ReadArgument(size_t(i), PyTuple_GetItem(arguments_, i))) return nullptr;
  }
  if (has_device_) {
    PyObject* ready = PyObject_CallMethod(side_, "ready", "(O)", arguments_);
    if (!ready) return nullptr;
    Py_DecRef(ready);
  }
  const auto known = c_.rooms.find(function);
  if (!TakeRoom(known == c_.rooms.end() ? kFirstRoom : known->second)) return nullptr;
  worker::Writer writer(c_.memory + c_.Writes() + 4);
  if (Status status = writer.Put(call_); !status.ok()) return RaiseWorkerError(status);
  if (IsWorthWaking(copied_)) c_.Ours().Announce(c_.send);
  for (Copy& copy : copies_) CopyTo(c_, copy.tensor, copy.place);
  c_.is_busy = true;
  if (!SendMessage(c_, writer.size()) || !Answer(seconds)) return nullptr;
  if (worker::Kind(c_.incoming[0]) == worker::Kind::kNeed && (!GiveRoom() || !Answer(seconds))) return nullptr;
  c_.is_busy = false;
  if (worker::Kind(c_.incoming[0]) == worker::Kind::kError) {
    return PyObject_CallMethod(side_, "failed", "y#", c_.incoming.data(), Py_ssize_t(c_.incoming.size()));
  }
  worker::Answer answer;
  if (Status status = worker::Read(c_.incoming, &answer); !status.ok()) return RaiseWorkerError(status);
  PyObject* results = Results(answer);
  bool ok = results && CopyBack();
  if (ok && !answer.warnings.empty()) {
    PyObject* warned =
        PyObject_CallMethod(side_, "warn", "y#", answer.warnings.data(), Py_ssize_t(answer.warnings.size()));
    ok = warned != nullptr;
    Py_XDECREF(warned);
  }
  if (!ok) Py_CLEAR(results);
  return results;
}

}  // namespace

PyObject* WorkerCall(PyObject*, PyObject* args) {
  PyObject *capsule, *side, *arguments;
  unsigned short function;
  unsigned long long written;
  double seconds;
  if (!PyArg_ParseTuple(args, "OOHO!Kd", &capsule, &side, &function, &PyTuple_Type, &arguments, &written, &seconds)) {
    return nullptr;
  }
  const ChannelPtr* channel = ToChannel(capsule);
  if (!channel) return nullptr;
  const ChannelPtr kept = *channel;
  return ParentCall(kept, side, arguments, written).Run(function, seconds);
}

}  // namespace lz::python
