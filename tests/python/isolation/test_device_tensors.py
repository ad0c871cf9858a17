"""Tensors on a CUDA device in messages of calls, on a machine without one: what C++ hands to Python and back, with tensors that
say they are on a device and lie in host memory. tests/gpu/test_isolation.py does the same with a device."""

import contextlib
import ctypes
import os
import threading

import pytest

torch = pytest.importorskip("torch")

from isolated import sides  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from layerzero.isolation import devices, protocol  # noqa: E402  # protocol sets the types of errors

SHAPE, STRIDES, FLOAT32 = (2, 3), (8, 1), (2, 32, 1)


class DLTensor(ctypes.Structure):
    """DLPack's struct, followed by what DLManagedTensor has after it."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("owner_and_deleter", ctypes.c_void_p * 2),
    ]


@pytest.fixture
def on_device(monkeypatch):
    """Makes a tensor of float32 that says it is on cuda:0, over 64 numbers of host memory."""
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    kept = []

    def make(shape=SHAPE, strides=STRIDES):
        count = len(shape)
        parts = (ctypes.c_float * 64)(*range(64)), (ctypes.c_int64 * count)(*shape), (ctypes.c_int64 * count)(*strides)
        memory, sizes, steps = parts
        tensor = DLTensor(ctypes.addressof(memory), (ctypes.c_int32 * 2)(2, 0), count, *FLOAT32, sizes, steps)
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        kept.append((tensor, parts))
        made = torch._C._from_dlpack(capsule(ctypes.addressof(tensor), b"dltensor", None))
        assert str(made.device) == "cuda:0"
        return made

    return make


class Side:
    """The Python part of one side of a channel: notes what C++ calls it with."""

    def __init__(self, function=None, result=None):
        self.functions, self.result = [function], result
        self.shared, self.opened, self.ready_with, self.finished = [], [], [], 0

    def share(self, tensor):
        self.shared.append(tensor)
        return 4 * tensor.storage_offset() + 16, b"handle \0 %d" % len(self.shared)

    def open(self, handle, code, bits, lanes, shape, strides, at):
        self.opened.append((handle, (code, bits, lanes), shape, strides, at))
        return torch.full(shape, float(len(self.opened)))

    def ready(self, arguments):
        self.ready_with.append(arguments)

    def finish(self):
        self.finished += 1

    def set_threads(self, count):
        pass

    def take_warnings(self):
        return b""

    def error_message(self, error):
        return b"\x14" + repr(error).encode()

    def failed(self, message):
        raise AssertionError(message)


def call(ours, theirs, arguments):
    """The result of function 0 of the other side, which serves in a thread."""
    parent, worker, file, sockets = sides()
    serving = threading.Thread(target=lambda: serve(worker, theirs), daemon=True)
    serving.start()
    try:
        return _layerzero.worker_call(parent, ours, 0, arguments, 0, 30.0)
    finally:
        for one in sockets:
            one.shutdown(2)
        serving.join(30)
        os.close(file)


def serve(channel, side):
    with contextlib.suppress(EOFError):
        _layerzero.worker_serve(channel, side)


def test_arguments_and_results_on_a_device_cross_as_handles(on_device):
    x, y, result = on_device(), on_device((4,), (2,)), on_device((5,), (1,))
    seen = []

    def kernel(*arguments):
        seen.extend(arguments)
        return result, torch.arange(3.0)

    ours, theirs = Side(), Side(kernel)
    got = call(ours, theirs, (x, 2.5, y, None))
    # The parent waits for all arguments at once, and gives away each tensor by itself.
    assert len(ours.ready_with) == 1 and isinstance(ours.ready_with[0], tuple) and ours.ready_with[0][0] is x
    assert [t is s for t, s in zip(ours.shared, (x, y), strict=True)] == [True, True]
    # The worker opens them with the dtype, the sizes and strides in elements, and the offset in bytes.
    assert theirs.opened == [
        (b"handle \0 1", FLOAT32, SHAPE, STRIDES, 16),
        (b"handle \0 2", FLOAT32, (4,), (2,), 16),
    ]
    assert [type(a).__name__ for a in seen] == ["Tensor", "float", "Tensor", "NoneType"]
    assert torch.equal(seen[0], torch.full(SHAPE, 1.0)) and torch.equal(seen[2], torch.full((4,), 2.0))
    # The result comes back in the same way, after the worker has waited for its device; one on the CPU by shared memory.
    assert theirs.shared[0] is result and theirs.finished == 1
    assert ours.opened == [(b"handle \0 1", FLOAT32, (5,), (1,), 16)]
    assert torch.equal(got[0], torch.full((5,), 1.0)) and torch.equal(got[1], torch.arange(3.0))


def test_calls_without_a_device_wait_for_none():
    ours, theirs = Side(), Side(lambda x: x + 1)
    assert torch.equal(call(ours, theirs, (torch.ones(3),)), torch.full((3,), 2.0))
    assert not ours.ready_with and not theirs.finished and not theirs.opened


class Memory:
    """What devices.shared() asks of a tensor on a device, with torch's order of a shared storage's values."""

    dtype = torch.float32
    handle = (0, b"memory \0 of the device", 4096, 512, b"counter", 24, b"event", True)

    def untyped_storage(self):
        return self

    def _share_cuda_(self):
        return self.handle

    def storage_offset(self):
        return 3


def test_a_handle_is_opened_with_the_values_that_torch_gave(monkeypatch):
    offset, handle = devices.shared(Memory())
    assert offset == 12
    given, storage, empty = [], torch.arange(64.0).untyped_storage(), torch.empty
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch, "empty", lambda *sizes, dtype, device: empty(*sizes, dtype=dtype))
    monkeypatch.setattr(
        torch.UntypedStorage, "_new_shared_cuda", lambda *values: given.append(values) or storage, raising=False
    )
    opened = devices.opened(handle, FLOAT32, SHAPE, STRIDES, offset)
    assert given == [Memory.handle]
    assert torch.equal(opened, torch.arange(64.0).as_strided(SHAPE, STRIDES, 3))
    for broken in (handle[:-1], handle + b"x", handle[:10]):
        with pytest.raises(protocol.ProtocolError, match="handle of a CUDA tensor"):
            devices.opened(broken, FLOAT32, SHAPE, STRIDES, offset)
    for shape, at in (((9, 8), 0), (SHAPE, 256), (SHAPE, 13)):
        with pytest.raises(protocol.ProtocolError, match="outside of its memory"):
            devices.opened(handle, FLOAT32, shape, STRIDES, at)
    with pytest.raises(protocol.ProtocolError, match="no dtype"):
        devices.opened(handle, (2, 13, 1), SHAPE, STRIDES, offset)
