"""Messages between this process and a worker, as bytes in the memory that they share. No pickle: a message holds numbers,
texts, tensors as (dtype, shape, strides, place) and JSON of bounded length, and every read of one is checked.

The first bytes of the arena, in order: the words (see Word), the request, the response, and from DATA on the tensors.
A side writes its message, then stores a new number in its word. Integers are little-endian.
"""

import json
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

VERSION = 1
MAGIC = 0x315A4C52454B524F
MAX_MESSAGE = 64 * 1024  # bytes
MAX_ARGUMENTS = 64
MAX_DIMS = 16
MAX_TEXT = 8 * 1024  # bytes of one text
MAX_WARNINGS = 16  # of one call
REQUEST, RESPONSE = 4096, 4096 + MAX_MESSAGE + 4096  # where each message is, after its length
DATA = 256 * 1024  # where the tensors begin
ALIGNMENT = 64  # of a tensor, bytes

# In the order of their numbers in messages; a version of torch may lack the last ones.
DTYPES = (
    "float32", "float64", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64", "bool", "complex64",
    "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "uint16", "uint32", "uint64",
    "float8_e8m0fnu", "float4_e2m1fn_x2",
)  # fmt: skip


class Word(IntEnum):
    """Places of 64-bit words, each in a cache line of its own."""

    MAGIC = 0
    REQUESTS = 64  # number of the last request
    RESPONSES = 128  # number of the last response
    PARENT_SLEEPS = 192  # not 0: it waits for a byte in the socket
    WORKER_SLEEPS = 256


class Kind(IntEnum):
    """The first byte of a message."""

    LOAD = 1  # JSON: import adapters, and run the probe
    CALL = 2
    ROOM = 3  # place and bytes for the outputs
    READY = 16  # JSON: the worker's versions
    LOADED = 17  # JSON: the error of what LOAD asked for, or ""
    NEED = 18  # the bytes that the outputs of the running call take
    RESULT = 19
    ERROR = 20  # JSON


class Tag(IntEnum):
    """The type of an argument or result."""

    NONE = 0
    INT = 1
    FLOAT = 2
    BOOL = 3
    TEXT = 4
    HOST = 5  # a tensor in the arena
    DEVICE = 6  # a tensor in the memory of a CUDA device


class Place(NamedTuple):
    """A tensor without its data: `offset` in bytes from the arena's begin, or a handle of CUDA's memory."""

    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    handle: tuple[Any, ...] | None = None


class ProtocolError(Exception):
    """A message breaks the protocol."""


class Unsendable(ProtocolError):
    """A value does not fit into a message, and was not sent."""


def aligned(size: int) -> int:
    """Returns the next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Returns the number of elements from the first to the last one of a tensor."""
    last = 0
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * stride
    return last + 1


_CALL = struct.Struct("<BHHQQ")  # kind, function, threads, place and bytes for the outputs
_TENSOR = struct.Struct("<BBQ")  # dtype, dims, offset
_ROOM = struct.Struct("<BQQ")
_NEED = struct.Struct("<BQ")
_RESULT = struct.Struct("<BHB")  # kind, results, 1: a tuple
_DEVICE = struct.Struct(
    "<iqqqHHHB"
)  # device, bytes, offset, counter's offset, lengths of the three texts, must it wait
_INT, _FLOAT, _LENGTH = struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<I")
_INTS = [struct.Struct(f"<{n}q") for n in range(2 * MAX_DIMS + 1)]


class Writer:
    """Appends values to a message."""

    def __init__(self, head: bytes) -> None:
        self.parts = [head]

    def value(self, value: Any) -> None:
        """Appends None, a bool, an int, a float, a text or a Place."""
        parts = self.parts
        if value is None:
            parts.append(b"\x00")
        elif isinstance(value, Place):
            self._place(value)
        elif isinstance(value, bool):
            parts.append(b"\x03\x01" if value else b"\x03\x00")
        elif isinstance(value, int):
            parts += b"\x01", _INT.pack(value)
        elif isinstance(value, float):
            parts += b"\x02", _FLOAT.pack(value)
        elif isinstance(value, str):
            text = value.encode()
            if len(text) > MAX_TEXT:
                raise Unsendable(f"wanted a text of at most {MAX_TEXT} bytes, got {len(text)}")
            parts += b"\x04", _LENGTH.pack(len(text)), text
        else:
            raise Unsendable(f"wanted a tensor, number, text or None, got {type(value).__name__}")

    def _place(self, place: Place) -> None:
        dims = len(place.shape)
        if dims > MAX_DIMS:
            raise Unsendable(f"wanted at most {MAX_DIMS} dimensions, got {dims}")
        self.parts.append(b"\x05" if place.handle is None else b"\x06")
        self.parts.append(_TENSOR.pack(place.dtype, dims, place.offset))
        self.parts.append(_INTS[2 * dims].pack(*place.shape, *place.strides))
        if place.handle is not None:
            device, memory, size, offset, counter, counter_offset, event, wait = place.handle
            texts = memory, counter, event
            self.parts.append(_DEVICE.pack(device, size, offset, counter_offset, *map(len, texts), wait))
            self.parts += texts

    def bytes(self, head: int = 0) -> bytes:
        """Returns the message, which follows `head` other bytes."""
        message = b"".join(self.parts)
        if head + len(message) > MAX_MESSAGE:
            raise Unsendable(f"wanted a message of at most {MAX_MESSAGE} bytes, got {head + len(message)}")
        return message


class Reader:
    """Reads the values of a message; anything that does not fit raises ProtocolError."""

    def __init__(self, message: bytes, at: int = 0) -> None:
        self.message, self.at = message, at

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Returns the next fields."""
        try:
            found = layout.unpack_from(self.message, self.at)
        except struct.error:
            raise ProtocolError(f"the message of {len(self.message)} bytes ends inside of a value") from None
        self.at += layout.size
        return found

    def raw(self, length: int, most: int) -> bytes:
        """Returns the next bytes."""
        found = self.message[self.at : self.at + length]
        if length > most or len(found) != length:
            raise ProtocolError(f"wanted at most {most} bytes that are there, got a length of {length}")
        self.at += length
        return found

    def value(self) -> Any:
        """Returns None, a bool, an int, a float, a text or a Place."""
        tag = self.raw(1, 1)[0]
        if tag == Tag.NONE:
            return None
        if tag == Tag.INT:
            return self.take(_INT)[0]
        if tag == Tag.FLOAT:
            return self.take(_FLOAT)[0]
        if tag == Tag.BOOL:
            return self.raw(1, 1) != b"\x00"
        if tag == Tag.TEXT:
            return _text(self.raw(self.take(_LENGTH)[0], MAX_TEXT))
        if tag in (Tag.HOST, Tag.DEVICE):
            return self._place(tag == Tag.DEVICE)
        raise ProtocolError(f"wanted the tag of a value, got {tag}")

    def _place(self, on_device: bool) -> Place:
        dtype, dims, offset = self.take(_TENSOR)
        if dtype >= len(DTYPES) or dims > MAX_DIMS:
            raise ProtocolError(f"wanted a tensor's dtype and dimensions, got numbers {dtype} and {dims}")
        numbers = self.take(_INTS[2 * dims])
        shape, strides = numbers[:dims], numbers[dims:]
        if any(n < 0 for n in numbers):
            raise ProtocolError(f"wanted sizes and strides that are not negative, got {shape} and {strides}")
        if not on_device:
            return Place(dtype, shape, strides, offset)
        device, size, start, counter_offset, *lengths, wait = self.take(_DEVICE)
        memory, counter, event = (self.raw(length, 1024) for length in lengths)
        handle = device, memory, size, start, counter, counter_offset, event, bool(wait)
        return Place(dtype, shape, strides, offset, handle)

    def end(self) -> None:
        """Raises an error if something is left."""
        if self.at != len(self.message):
            raise ProtocolError(f"the message has {len(self.message) - self.at} bytes too many")


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a text is not UTF-8: {error}") from None


def kind_of(message: bytes) -> Kind:
    """Returns the kind of a message."""
    try:
        return Kind(message[0])
    except (IndexError, ValueError):
        raise ProtocolError(f"wanted a known kind of message, got {message[:1]!r}") from None


def json_message(kind: Kind, document: dict[str, Any]) -> bytes:
    """Returns a message of JSON."""
    return Writer(bytes([kind]) + json.dumps(document).encode()).bytes()


def read_json(message: bytes, **fields: type | tuple[type, ...]) -> dict[str, Any]:
    """Returns the document of a JSON message, which has exactly these fields of these types."""
    try:
        document = json.loads(message[1:])
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"wanted JSON: {error}") from None
    if not isinstance(document, dict) or set(document) != set(fields):
        raise ProtocolError(f"wanted the fields {', '.join(fields)}, got {str(document)[:200]}")
    for name, kind in fields.items():
        if not isinstance(document[name], kind):
            raise ProtocolError(f"{name}: wanted {kind}, got {str(document[name])[:200]}")
    return document


class Call(NamedTuple):
    """A request: arguments of the function with this number, torch's threads, place and bytes for the outputs. A call like an
    earlier one has the same `body`."""

    function: int
    body: bytes  # the arguments, see arguments_body
    threads: int
    room: int
    room_bytes: int


def arguments_body(arguments: list[Any]) -> bytes:
    """Returns the arguments of a call as bytes."""
    if len(arguments) > MAX_ARGUMENTS:
        raise Unsendable(f"wanted at most {MAX_ARGUMENTS} arguments, got {len(arguments)}")
    writer = Writer(bytes([len(arguments)]))
    for argument in arguments:
        writer.value(argument)
    return writer.bytes(head=_CALL.size)


def read_arguments(body: bytes) -> list[Any]:
    """Returns the arguments of a call."""
    reader = Reader(body)
    count = reader.raw(1, 1)[0]
    if count > MAX_ARGUMENTS:
        raise ProtocolError(f"wanted at most {MAX_ARGUMENTS} arguments, got {count}")
    arguments = [reader.value() for _ in range(count)]
    reader.end()
    return arguments


def call_message(call: Call) -> bytes:
    """Returns the message of a call."""
    function, body, threads, room, room_bytes = call
    return _CALL.pack(Kind.CALL, function, min(threads, 65535), room, room_bytes) + body


def read_call(message: bytes) -> Call:
    """Returns the call of a message."""
    reader = Reader(message)
    _, function, threads, room, room_bytes = reader.take(_CALL)
    return Call(function, message[_CALL.size :], threads, room, room_bytes)


def room_message(offset: int, size: int) -> bytes:
    """Returns the message with the memory for a running call's outputs."""
    return _ROOM.pack(Kind.ROOM, offset, size)


def read_room(message: bytes) -> tuple[int, int]:
    """Returns offset and bytes."""
    reader = Reader(message)
    _, offset, size = reader.take(_ROOM)
    reader.end()
    return offset, size


def need_message(size: int) -> bytes:
    """Returns the message that asks for memory for outputs."""
    return _NEED.pack(Kind.NEED, size)


def read_need(message: bytes) -> int:
    """Returns the bytes."""
    reader = Reader(message)
    _, size = reader.take(_NEED)
    reader.end()
    return size


def result_message(results: list[Any], is_tuple: bool, warnings: list[dict[str, Any]]) -> bytes:
    """Returns the message of a call's results: tensors as Places, and None."""
    if len(results) > MAX_ARGUMENTS:
        raise Unsendable(f"wanted at most {MAX_ARGUMENTS} results, got {len(results)}")
    writer = Writer(_RESULT.pack(Kind.RESULT, len(results), is_tuple))
    for result in results:
        writer.value(result)
    text = json.dumps(warnings[:MAX_WARNINGS]).encode() if warnings else b""
    writer.parts += _LENGTH.pack(len(text)), text
    return writer.bytes()


def read_result(message: bytes) -> tuple[list[Any], bool, list[dict[str, Any]]]:
    """Returns the results, whether they are a tuple, and the warnings of the call."""
    reader = Reader(message)
    _, count, is_tuple = reader.take(_RESULT)
    if count > MAX_ARGUMENTS or (not is_tuple and count != 1):
        raise ProtocolError(f"wanted a number of results, got {count}")
    results = [reader.value() for _ in range(count)]
    if not all(result is None or isinstance(result, Place) for result in results):
        raise ProtocolError("wanted tensors as results")
    text = reader.raw(reader.take(_LENGTH)[0], MAX_MESSAGE)
    reader.end()
    return results, bool(is_tuple), read_warnings(text) if text else []


def read_warnings(text: bytes) -> list[dict[str, Any]]:
    """Returns checked warnings: {"category", "text", "file", "line"} each."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"wanted warnings as JSON: {error}") from None
    kinds: dict[str, Callable[[Any], bool]] = {
        name: lambda v: isinstance(v, str) for name in ("category", "text", "file")
    }
    kinds["line"] = lambda v: isinstance(v, int) and not isinstance(v, bool)
    for warning in found if isinstance(found, list) and len(found) <= MAX_WARNINGS else [None]:
        if not isinstance(warning, dict) or set(warning) != set(kinds):
            raise ProtocolError(f"wanted a list of warnings, got {str(found)[:200]}")
        if not all(check(warning[name]) for name, check in kinds.items()):
            raise ProtocolError(f"wanted a warning of texts and a line, got {str(warning)[:200]}")
    return found
