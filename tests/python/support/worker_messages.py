"""Messages of calls as a worker writes them (src/worker/message.h), for tests that answer wrongly."""

import struct

DATA = 256 * 1024  # where tensors begin
RESPONSE = 4096 + 64 * 1024 + 4096  # where a response is, after its length
_CALL = struct.Struct("<BHHQQB")  # kind, function, threads, place and bytes for outputs, arguments
_FLOAT32 = (2, 32, 1)


def room_of(call):
    """Returns the offset of the memory for a call's outputs."""
    return _CALL.unpack_from(call)[3]


def text_of(call):
    """Returns the last argument of a call, which is a text, and shape and offset of the first, which is a tensor."""
    at = _CALL.size + 1
    *_, ndim, offset = struct.unpack_from("<BBBBQ", call, at)
    at += 12
    shape = struct.unpack_from(f"<{ndim}q", call, at)
    at += 16 * ndim + 1
    (length,) = struct.unpack_from("<I", call, at)
    return call[at + 4 : at + 4 + length].decode(), shape, offset


def place(shape=(4,), offset=DATA, strides=None):
    """Returns a tensor of float32 as a value."""
    if strides is None:
        strides, step = [], 1
        for size in reversed(shape):
            strides.insert(0, step)
            step *= size
    return struct.pack(f"<BBBBBQ{len(shape)}q{len(shape)}q", 5, *_FLOAT32, len(shape), offset, *shape, *strides)


def text(value):
    """Returns a text as a value."""
    return struct.pack("<BI", 4, len(value)) + value.encode()


def result(*values, is_tuple=False):
    """Returns the message of a result."""
    return struct.pack("<BBIB", 19, is_tuple, 0, len(values)) + b"".join(values)


def need(size):
    """Returns the message that asks for room for outputs."""
    return struct.pack("<BQ", 18, size)
