"""One running worker: its requests and responses, and the tensors of calls in the arena."""

import os
import time
from typing import Any, NamedTuple

from layerzero import _layerzero
from layerzero.errors import VersionMismatchError, WorkerError
from layerzero.host.policy import Isolation
from layerzero.isolation import devices, failures, process, protocol
from layerzero.isolation.arena import Blocks, Full, Results, dense_strides
from layerzero.isolation.protocol import (
    DATA,
    MAGIC,
    REQUEST,
    RESPONSE,
    Kind,
    Place,
    ProtocolError,
    Unsendable,
    Word,
    aligned,
    extent,
)

SPIN_US = 50.0  # before this side sleeps
FIRST_ROOM = 64 * 1024  # bytes for outputs of unknown size
KINDS = 16  # of calls whose places are kept
FIX = "`layerzero health show` has the breaker; `layerzero doctor` the workers"


class _Kind(NamedTuple):
    """What calls of one kind share."""

    body: bytes  # of the message
    copies: list[tuple[int, Any]]  # number of an argument, and its tensor in the arena
    held: list[int]  # blocks


class Connection:
    """One running worker. Its owner's lock guards it, so there is one request at a time."""

    def __init__(self, library: str, started: process.Started, settings: Isolation) -> None:
        import torch

        self.torch, self.library, self.started, self.settings = torch, library, started, settings
        self.memory, self.file = started.memory, started.socket.fileno()
        self.blocks = Blocks(self.memory.size)
        self.requests = self.responses = 0
        self.loaded: dict[str, int] = {}  # adapter -> its number in the worker
        self.rooms: dict[int, int] = {}  # function -> bytes that its last outputs took
        self.kinds: dict[tuple[Any, ...], _Kind] = {}  # of calls, the oldest first
        self.began = time.monotonic()
        self.busy = False  # a call is running there
        self.spin_us = SPIN_US if (os.cpu_count() or 1) > 1 else 0.0

    def hello(self, end: float) -> None:
        """Waits for READY and checks the versions."""
        message = self._response(end)
        if message is None:
            raise WorkerError(self._name, "READY", f"nothing in {self.settings.start_timeout_s:g} s")
        if self.memory.bytes[Word.MAGIC : Word.MAGIC + 8] != MAGIC.to_bytes(8, "little"):
            raise ProtocolError("wanted the protocol's number in the arena")
        process.remove(self.started.path)
        ready = protocol.read_json(message, protocol=int, version=str, build=str, torch=str, pid=int)
        ours = protocol.VERSION, *_layerzero.build_id()
        theirs = ready["protocol"], ready["version"], ready["build"]
        if theirs[:2] != ours[:2]:
            raise VersionMismatchError(
                self._name, f"LayerZero {ours[1]}", theirs[1], "install the same version in its container"
            )

    @property
    def _name(self) -> str:
        return f"the worker of {self.library}"

    def load(self, adapters: tuple[str, ...], probe: str, end: float) -> str:
        """Imports adapters there, and runs the probe. Returns the error, or ""."""
        new = [adapter for adapter in adapters if adapter not in self.loaded]
        self._send(protocol.json_message(Kind.LOAD, {"adapters": new, "probe": probe}))
        message = self._response(end)
        if message is None:
            raise WorkerError(self._name, f"an import within {self.settings.start_timeout_s:g} s", "no answer", FIX)
        error = protocol.read_json(message, error=str)["error"]
        if not error:
            self.loaded |= {adapter: len(self.loaded) + i for i, adapter in enumerate(new)}
        return error

    def _send(self, message: bytes) -> None:
        self.memory.write(REQUEST, message)
        self.requests += 1
        self.memory.ring(Word.REQUESTS, self.requests, Word.WORKER_SLEEPS, self.file)

    def _response(self, end: float) -> bytes | None:
        """Returns the next response, or None at the time `end`; EOFError: the worker has ended."""
        left = max(end - time.monotonic(), 0.0)
        number = self.memory.wait(Word.RESPONSES, self.responses, Word.PARENT_SLEEPS, self.file, self.spin_us, left)
        if number is None:
            return None
        if number != self.responses + 1:
            raise ProtocolError(f"wanted response {self.responses + 1}, got {number}")
        self.responses = number
        return self.memory.read(RESPONSE)

    def call(self, function: int, arguments: tuple[Any, ...], written: frozenset[int], end: float) -> Any:
        """Runs a function there. Blocks of the arena are released, except that of the results."""
        held: list[int] = []
        try:
            return self._call(function, arguments, written, held, end)
        finally:
            for offset in held:
                self.blocks.release(offset)

    def _room(self, function: int, held: list[int]) -> tuple[int, int]:
        """Returns offset and bytes of memory for outputs, as many as the function's last ones took."""
        for wanted in (self.rooms.get(function, FIRST_ROOM), FIRST_ROOM):
            try:
                return self._block(wanted, held)
            except Full:
                if wanted <= FIRST_ROOM:
                    raise
        raise AssertionError

    def _block(self, size: int, held: list[int]) -> tuple[int, int]:
        held.append(self.blocks.allocate(size))
        return held[-1], max(aligned(size), protocol.ALIGNMENT)

    def _call(
        self, function: int, arguments: tuple[Any, ...], written: frozenset[int], held: list[int], end: float
    ) -> Any:
        back: list[tuple[Any, Any]] = []
        kind = None if written else self._kind(arguments)
        if kind is not None:
            for i, view in kind.copies:
                view.copy_(arguments[i])
            body = kind.body
        else:
            places, back = self._places(arguments, written, held)
            body = protocol.arguments_body(places)
        room, size = self._room(function, held)
        request = protocol.call_message(protocol.Call(function, body, self.torch.get_num_threads(), room, size))
        self.busy = True
        self._send(request)
        message = self._answer(end)
        if protocol.kind_of(message) == Kind.NEED:
            need = protocol.read_need(message)
            held.remove(room)
            self.blocks.release(room)
            if need > self.memory.size:
                raise ProtocolError(f"wanted a need of at most {self.memory.size} bytes, got {need}")
            try:
                room, size = self._block(need, held)
            except Full:
                self._send(protocol.room_message(0, 0))  # it answers with an error
                self._answer(end)
                self.busy = False
                raise
            self.rooms[function] = need
            self._send(protocol.room_message(room, size))
            message = self._answer(end)
        self.busy = False
        if protocol.kind_of(message) == Kind.ERROR:
            document = protocol.read_json(message, **failures.FIELDS)
            if document["lost"]:
                raise Lost(document)
            raise failures.error_of(document, self._name)
        if protocol.kind_of(message) != Kind.RESULT:
            raise ProtocolError(f"wanted a result, got {protocol.kind_of(message).name}")
        found, is_tuple, warnings = protocol.read_result(message)
        results = self._results(found, room, size, held)
        for tensor, view in back:
            tensor.copy_(view)
        if warnings:
            failures.warn(warnings)
        return tuple(results) if is_tuple else results[0]

    def _answer(self, end: float) -> bytes:
        message = self._response(end)
        if message is None:
            raise Hung
        return message

    def _kind(self, arguments: tuple[Any, ...]) -> "_Kind | None":
        """Returns what calls with tensors of these dtypes, shapes and strides and the same other arguments share: places in
        the arena and the message. None: some tensor is on a device, or in the arena already."""
        tensor_type, address, size = self.torch.Tensor, self.memory.address, self.memory.size
        key: list[Any] = []
        for argument in arguments:
            if isinstance(argument, tensor_type):
                if argument.device.type != "cpu" or 0 <= argument.data_ptr() - address < size:
                    return None
                key += argument.dtype, argument.shape, argument.stride()
            else:
                key += type(argument), argument.hex() if type(argument) is float else argument  # 0.0 is not -0.0
        try:
            kind = self.kinds.get(tuple(key))
        except TypeError:  # an argument that no message has
            return None
        if kind is None:
            kind = self._new_kind(arguments)
            if kind is not None:
                self.kinds[tuple(key)] = kind
        return kind

    def _new_kind(self, arguments: tuple[Any, ...]) -> "_Kind | None":
        if (
            self.blocks.pinned
            or sum(t.nbytes for t in arguments if isinstance(t, self.torch.Tensor)) > self.memory.size // 64
        ):
            return None
        while len(self.kinds) >= KINDS:
            for offset in self.kinds.pop(next(iter(self.kinds))).held:
                self.blocks.release(offset)
        held: list[int] = []
        try:
            places, _ = self._places(arguments, frozenset(), held)
            body = protocol.arguments_body(places)
        except BaseException:
            for offset in held:
                self.blocks.release(offset)
            raise
        copies = [(i, self.memory.view(p)) for i, p in enumerate(places) if isinstance(p, Place)]
        return _Kind(body, copies, held)

    def _places(
        self, arguments: tuple[Any, ...], written: frozenset[int], held: list[int]
    ) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Copies host tensors into the arena. Also returns (tensor, view there) of those that the kernel writes."""
        tensor_type, memory = self.torch.Tensor, self.memory
        values = list(arguments)
        known: dict[tuple[Any, ...], Place] = {}  # a tensor that is passed twice is one there too
        if written:
            _check_overlap([a for a in arguments if isinstance(a, tensor_type)], [arguments[i] for i in written])
        back, on_devices = [], []
        for i, tensor in enumerate(arguments):
            if not isinstance(tensor, tensor_type):
                continue
            if tensor.device.type != "cpu":
                on_devices.append(tensor)
                values[i] = devices.shared(tensor, memory.number_of(tensor.dtype))
                continue
            shape = tuple(tensor.shape)
            key = (tensor.data_ptr(), tensor.dtype, shape, tensor.stride()) if written else ()
            if written and key in known:
                values[i] = known[key]
                continue
            values[i] = place = self._inside(tensor, shape) if i not in written else None
            if place is None:
                strides = tensor.stride() if tensor.is_contiguous() else dense_strides(shape, tensor.stride())
                number, size = memory.number_of(tensor.dtype), tensor.numel() * tensor.dtype.itemsize
                offset = DATA
                if size:
                    offset = self.blocks.allocate(size)
                    held.append(offset)
                values[i] = place = Place(number, shape, strides, offset)
                view = memory.view(place)
                view.copy_(tensor)
                if i in written:
                    back.append((tensor, view))
            known[key] = place
        if on_devices:
            devices.ready(on_devices)
        return values, back

    def _inside(self, tensor: Any, shape: tuple[int, ...]) -> Place | None:
        """Returns the place of a tensor that is in the arena already: a result of an earlier call."""
        offset = tensor.data_ptr() - self.memory.address
        strides = tensor.stride()
        size = extent(shape, strides) * tensor.dtype.itemsize
        if (
            not DATA <= offset <= self.memory.size - size
            or offset % protocol.ALIGNMENT
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return None
        return Place(self.memory.number_of(tensor.dtype), shape, strides, offset)

    def _results(self, found: list[Any], room: int, size: int, held: list[int]) -> list[Any]:
        """Returns the tensors of a response. Those on the CPU are over the arena, unless half of it is in use."""
        ends = [room]
        for place in found:
            on_host = place is not None and place.handle is None
            if on_host and (taken := self.memory.check(place, ends[-1], room + size)):
                ends.append(place.offset + aligned(taken))
        device = [devices.opened(p, self.memory.dtype_of(p)).clone() for p in found if p is not None and p.handle]
        for tensor in device:  # the copy is made before the worker may use the memory again
            self.torch.cuda.current_stream(tensor.device).synchronize()
        made = None
        if len(ends) > 1 and 2 * self.blocks.held() <= self.memory.size:
            held.remove(room)
            self.blocks.shrink(room, ends[-1] - room)
            made = Results(self.memory, self.blocks, room, ends[-1] - room)
        device.reverse()
        return [None if p is None else device.pop() if p.handle else self._result(p, made) for p in found]

    def _result(self, place: Place, made: Results | None) -> Any:
        return self.memory.view(place).clone() if made is None else made.tensor(place)


def _range(tensor: Any) -> tuple[int, int]:
    begin = tensor.data_ptr()
    return begin, begin + extent(tuple(tensor.shape), tensor.stride()) * tensor.dtype.itemsize


def _check_overlap(tensors: list[Any], written: list[Any]) -> None:
    """A tensor that shares some of its memory with a written one would be a copy of its own in the worker."""
    for one in filter(lambda t: t is not None and t.device.type == "cpu" and t.numel(), written):
        for other in tensors:
            begin, end = _range(other)
            first, last = _range(one)
            same = begin == first and other.shape == one.shape and other.stride() == one.stride()
            if other is one or same or other.device.type != "cpu" or end <= first or last <= begin:
                continue
            if any(
                t.numel() * t.dtype.itemsize == b - a for t, (a, b) in ((one, (first, last)), (other, (begin, end)))
            ):
                raise Unsendable("wanted written tensors that share no memory with others, got two that do")


class Hung(Exception):
    """A worker did not answer in time."""


class Lost(Exception):
    """A worker's CUDA context is lost."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document["text"])
        self.document = document
