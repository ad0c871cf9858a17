// Calls of kernels in a worker process: one side's view of the memory and socket that it shares with the other. Python
// code (layerzero/isolation) starts processes and decides what a failure means; here are the messages and the tensors.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "worker/blocks.h"
#include "worker/doorbell.h"
#include "worker/message.h"

namespace lz::python {

// One side. One call at a time: the parent's owner has a lock for it. Lives as long as a tensor over its memory.
struct Channel {
  Channel(char* mapped, uint64_t bytes) : memory(mapped), size(bytes), blocks(bytes) {}
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  uint64_t Reads() const { return is_worker ? worker::kRequestAt : worker::kResponseAt; }
  uint64_t Writes() const { return is_worker ? worker::kResponseAt : worker::kRequestAt; }
  worker::Doorbell Theirs() const { return {memory, is_worker ? worker::kRequestsWord : worker::kResponsesWord}; }
  worker::Doorbell Ours() const { return {memory, is_worker ? worker::kResponsesWord : worker::kRequestsWord}; }
  bool Holds(const void* data) const { return data >= memory && data < memory + size; }

  char* memory;
  uint64_t size;
  bool is_worker = false;
  int receive = -1, send = -1;  // sockets of the Python side
  worker::Patience spin, announced;
  uint64_t sent = 0, received = 0;               // numbers of messages
  std::string incoming;                          // a copy of the last message
  bool is_busy = false;                          // a call is running in the worker
  worker::Blocks blocks;                         // the parent's
  std::unordered_map<uint16_t, uint64_t> rooms;  // function -> bytes that its last outputs took
};
using ChannelPtr = std::shared_ptr<Channel>;

// Python's exceptions for what a channel finds; see worker_errors.
struct WorkerErrors {
  PyObject *protocol = nullptr, *unsendable = nullptr, *full = nullptr, *hung = nullptr;
};
extern WorkerErrors g_worker_errors;

// nullptr with a Python error: of `status`; kWrongType is Unsendable, all others ProtocolError.
PyObject* RaiseWorkerError(const Status& status);

// The channel of a capsule, or nullptr with a Python error.
const ChannelPtr* ToChannel(PyObject* capsule);

// Publishes the message of `size` bytes that was written to Channel::Writes() + 4. False with a Python error.
bool SendMessage(Channel& channel, size_t size);

// Whether the other side is woken before `bytes` are copied: copying takes as long as waking, and no longer than
// a side that was woken spins.
inline bool IsWorthWaking(uint64_t bytes) { return bytes >= (128 << 10) && bytes < (4 << 20); }

enum class Received { kMessage, kTimeout, kError };
// Waits with the GIL released until the next message is in `incoming`; seconds < 0: for good. kError: a Python error.
Received ReceiveMessage(Channel& channel, double seconds);

// ---- values (worker_values.cpp)

// Complex tensors may be conjugated, which their memory does not say.
inline bool IsComplex(const lz_tensor& tensor) { return tensor.dtype.code == 5; }
// A place in shared memory for a copy of the tensor: dense, in the order of its strides.
worker::Place DensePlace(const lz_tensor& tensor, uint64_t offset);
// The place of a tensor that is in the shared memory already; false if it is elsewhere.
bool PlaceInside(const Channel& channel, const lz_tensor& tensor, worker::Place* place);
// Copies a tensor to the place; a large one with the GIL released.
void CopyTo(Channel& channel, const lz_tensor& tensor, const worker::Place& place);
// A tensor over a place that was checked. `release` gets `owner` when the tensor is gone.
PyObject* TensorAt(const Channel& channel, worker::Place place, void* owner, void (*release)(void* owner));
// The same, which keeps the channel's memory alive and releases no block.
PyObject* ViewAt(const ChannelPtr& channel, const worker::Place& place);

// Sets a number, text, bool or None. False without an error for another object, false with one if it fits no message.
bool ReadPlain(PyObject* object, worker::Value* value);
PyObject* PlainObject(const worker::Value& value);
// Opens or shares a tensor in a device's memory by methods of `side`: open(handle, code, bits, lanes, shape, strides,
// offset), share(tensor) -> (offset, handle).
PyObject* OpenOnDevice(PyObject* side, const worker::Value& value);
// `*handle` is the owner of the value's text.
bool ShareOnDevice(PyObject* side, PyObject* tensor, const lz_tensor& view, worker::Value* value, PyObject** handle);

// ---- Python functions

// worker_call(channel, side, function, arguments, written, seconds) -> the function's result.
PyObject* WorkerCall(PyObject* self, PyObject* args);
// worker_serve(channel, side) -> the next message that is not a call.
PyObject* WorkerServe(PyObject* self, PyObject* args);
extern PyMethodDef kWorkerMethods[];

}  // namespace lz::python
