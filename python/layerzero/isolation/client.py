"""This process's side of the workers: one for each isolated library, and the functions that the engine calls instead of
the library's adapters.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from layerzero import _layerzero
from layerzero.contracts import contracts, host_parameter_names
from layerzero.errors import KernelRefusedError, LayerZeroError, VersionMismatchError, WorkerError
from layerzero.host import policy
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
FIRST_DELAY, LONGEST_DELAY = 0.1, 60.0  # seconds until a worker that ended is started again: doubled each time
STABLE = 60.0  # seconds of life after which an end counts as the first one
_FIX = "`layerzero health show` has the breaker; `layerzero doctor` the workers"


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
            raise WorkerError(self._name, f"an import within {self.settings.start_timeout_s:g} s", "no answer", _FIX)
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
        places, back = self._places(arguments, written, held)
        room, size = self._room(function, held)
        request = protocol.call_message(protocol.Call(function, places, self.torch.get_num_threads(), room, size))
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


class Worker:
    """The worker of one library: starts it, starts it again after its end, and runs calls."""

    def __init__(self, library: str, mode: str) -> None:
        self.library, self.mode = library, mode
        self.lock = threading.Lock()
        self.connection: Connection | None = None
        self.adapters: tuple[str, ...] = ()
        self.starting = False  # by the starter
        self.ends = 0  # in a row
        self.next_start = 0.0
        self.starts = 0
        self.last_end = ""
        self.closed = False
        self.starter: process.Starter | None = None

    # ---- life

    def _on_starter(self, work: Callable[[], None]) -> None:
        with _guard:
            if self.starter is None:
                self.starter = process.Starter()
        self.starter.do(work)

    def prove(self, adapters: tuple[str, ...], probe: str) -> str:
        """Imports the adapters in the worker and runs the probe. Returns the error, or ""."""
        done = threading.Event()
        errors: list[str] = []

        def work() -> None:
            try:
                errors.append(self._prove(adapters, probe))
            except BaseException as error:
                errors.append(f"{type(error).__name__}: {error}")
            done.set()

        self._on_starter(work)
        done.wait()
        return errors[0]

    def _prove(self, adapters: tuple[str, ...], probe: str) -> str:
        with self.lock:
            settings = policy.isolation()
            end = time.monotonic() + settings.start_timeout_s
            connection = self.connection
            try:
                if connection is None:
                    connection = self._start(settings, end)
                error = connection.load(adapters, probe, end)
            except EOFError:
                how = self._ended(connection)
                return f"{', '.join(adapters[:1])}: its import or probe ended the worker: {how}"
            except (WorkerError, ProtocolError) as error:
                self._ended(connection)
                return str(error)
            if not error:
                self.adapters = tuple(dict.fromkeys((*self.adapters, *adapters)))
            return error

    def _start(self, settings: Isolation, end: float) -> Connection:
        started = process.start(self.library, self.mode, settings)
        self.starts += 1
        connection = Connection(self.library, started, settings)
        self.connection = connection
        try:
            connection.hello(end)
        except EOFError:
            how = self._ended(connection)
            raise WorkerError(f"the worker of {self.library}", "READY", f"its end: {how}", _FIX) from None
        except BaseException:
            self._ended(connection)
            raise
        return connection

    def _restart(self) -> None:
        """On the starter, without the lock: calls are refused meanwhile."""
        settings = policy.isolation()
        end = time.monotonic() + settings.start_timeout_s
        connection = None
        try:
            started = process.start(self.library, self.mode, settings)
            connection = Connection(self.library, started, settings)
            connection.hello(end)
            if error := connection.load(self.adapters, "", end):
                raise WorkerError(f"the worker of {self.library}", "its imports", error)
            with self.lock:
                self.starts += 1
                self.starting = False
                if not self.closed:
                    self.connection = connection
                    return
            process.end(started)
        except BaseException as error:
            with self.lock:
                how = process.end(connection.started) if connection else ""
                self._note_end(f"{error or type(error).__name__}; {how}", 0.0)
                self.starting = False

    def _ended(self, connection: Connection | None) -> str:
        """With the lock: ends what is left of a worker. Returns how it ended."""
        if connection is None:
            return "it did not start"
        if self.connection is connection:
            self.connection = None
        how = process.end(connection.started)
        self._note_end(how, time.monotonic() - connection.began)
        return how

    def _note_end(self, how: str, life: float) -> None:
        self.ends = 1 if life > STABLE else self.ends + 1
        self.last_end = how
        self.next_start = time.monotonic() + min(FIRST_DELAY * 2 ** (self.ends - 1), LONGEST_DELAY)

    def close(self) -> None:
        """Ends the worker for good."""
        with self.lock:
            self.closed = True
            connection, self.connection = self.connection, None
            if connection is not None:
                process.end(connection.started)

    # ---- calls

    def _running(self) -> Connection:
        """With the lock: the worker, or KernelRefusedError while there is none."""
        if self.connection is not None:
            return self.connection
        if self.closed:
            raise _refused(self.library, "a worker", "a policy that has changed", "call again")
        left = self.next_start - time.monotonic()
        if not self.starting and left <= 0:
            self.starting = True
            self._on_starter(self._restart)
        when = f"in {left:.1f} s" if left > 0 else "now"
        got = f"it ended ({self.last_end}) and is started again {when}" if self.last_end else "it is starting"
        raise KernelRefusedError(f"the worker of {self.library}", "a running worker", got, "call again later")

    def run(self, adapter: str, arguments: tuple[Any, ...], written: frozenset[int]) -> Any:
        """Runs a call. WorkerError: the worker ended or did not answer; KernelRefusedError: it cannot take the call."""
        settings = policy.isolation()
        end = time.monotonic() + settings.timeout_s
        if not self.lock.acquire(timeout=settings.timeout_s):
            raise _refused(self.library, "a turn", f"none in {settings.timeout_s:g} s")
        try:
            connection = self._running()
            return self._run(connection, adapter, arguments, written, end)
        finally:
            self.lock.release()

    def _run(
        self, connection: Connection, adapter: str, arguments: tuple[Any, ...], written: frozenset[int], end: float
    ) -> Any:
        name = f"the worker of {self.library}"
        try:
            if adapter not in connection.loaded:
                if error := connection.load((adapter,), "", time.monotonic() + connection.settings.start_timeout_s):
                    raise _refused(self.library, adapter, error)
                self.adapters = tuple(dict.fromkeys((*self.adapters, adapter)))
            return connection.call(connection.loaded[adapter], arguments, written, end)
        except Full as error:
            if connection.blocks.pinned:
                self._ended(connection)  # the next one has an arena of its own
            raise _refused(self.library, "room in the shared memory", str(error), "raise isolation.arena_mb") from None
        except Hung:
            self._ended(connection)
            got = f"no answer in {connection.settings.timeout_s:g} s; it was ended"
            raise WorkerError(name, "a result", got, "raise isolation.timeout_s if calls take longer") from None
        except Lost as lost:
            self._ended(connection)
            raise failures.error_of(lost.document, name) from None
        except (EOFError, BrokenPipeError, ConnectionResetError):
            got = f"its end: {self._ended(connection)}"
            raise WorkerError(name, "a result", got, _FIX) from None
        except Unsendable as error:
            raise _refused(self.library, "a call that fits into a message", str(error)) from None
        except ProtocolError as error:
            self._ended(connection)
            raise WorkerError(name, "an answer as the protocol has it", str(error), _FIX) from None
        finally:
            if connection.busy and self.connection is connection:
                self._ended(connection)  # an error of this side, as KeyboardInterrupt, in the middle of the call

    def state(self) -> dict[str, Any]:
        """Returns {"mode", "pid", "starts", "last_end"}."""
        connection = self.connection
        pid = connection.started.process.pid if connection else None
        return {"mode": self.mode, "pid": pid, "starts": self.starts, "last_end": self.last_end or None}


def _refused(library: str, wanted: str, got: str, fix: str = "") -> KernelRefusedError:
    return KernelRefusedError(f"the worker of {library}", wanted, got, fix)


_workers: dict[str, Worker] = {}
_guard = threading.Lock()


def worker_of(library: str, mode: str) -> Worker:
    """Returns the worker of a library; it starts when a call or a proof needs it."""
    with _guard:
        worker = _workers.get(library)
        if worker is None:
            worker = _workers[library] = Worker(library, mode)
        return worker


def prove(library: str, mode: str, adapters: tuple[str, ...], probe: str) -> str:
    """Tests a library in its worker. Returns the error, or ""."""
    try:
        return worker_of(library, mode).prove(adapters, probe)
    except LayerZeroError as error:
        return str(error)


def proxy(library: str, mode: str, adapter: str, kernel_id: str) -> Callable[..., Any]:
    """Returns the function that the engine calls instead of the adapter."""
    worker = worker_of(library, mode)
    written = _written(kernel_id)

    def call(*arguments: Any) -> Any:
        import torch

        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise _refused(library, "tensors without a gradient", "one that requires it")
        for tensor in tensors:
            if tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "cuda"):
                raise _refused(library, "dense tensors on a CPU or CUDA device", f"{tensor.layout} on {tensor.device}")
        on_cuda = any(t.device.type == "cuda" for t in tensors)
        if on_cuda and devices.is_capturing():
            raise _refused(library, "no capture of a CUDA graph", "one")
        try:
            return worker.run(adapter, arguments, written)
        except WorkerError as error:
            if written and not on_cuda:  # the caller's tensors are as they were
                raise KernelRefusedError(error.field, error.wanted, error.got, error.fix) from error
            raise

    return call


def _written(kernel_id: str) -> frozenset[int]:
    """Returns the numbers of the parameters that a kernel's operation writes."""
    import json

    names = {row["name"] for row in json.loads(_layerzero.kernels(None)) if row["kernel_id"] == kernel_id}
    found = set()
    for name in names:
        written = {p["name"] for p in contracts()[name]["params"] if p.get("mutated")}
        found |= {i for i, own in enumerate(host_parameter_names(name)) if own in written}
    return frozenset(found)


def states() -> dict[str, dict[str, Any]]:
    """Returns the state of each library's worker."""
    return {library: worker.state() for library, worker in _workers.items()}


def policy_changed(before: Isolation, now: Isolation) -> None:
    """Ends the workers of libraries whose mode or container has changed."""

    def container(settings: Isolation, library: str) -> Any:
        return settings.container_of(library) if settings.mode_of(library) == "container" else None

    with _guard:
        changed = [
            library
            for library in _workers
            if before.mode_of(library) != now.mode_of(library) or container(before, library) != container(now, library)
        ]
        workers = [_workers.pop(library) for library in changed]
    for worker in workers:
        worker.close()


def _before_fork() -> None:
    """A child reads the parent's results in the arena: their blocks are not used again."""
    for worker in list(_workers.values()):
        if (connection := worker.connection) is not None:
            connection.blocks.pin()


def _in_child() -> None:
    """A child starts workers of its own; those of its parent are none of its business."""
    global _guard
    _guard = threading.Lock()
    for worker in _workers.values():
        if worker.connection is not None:
            worker.connection.started.socket.close()
            worker.connection.started.process.returncode = 0  # no child of this process
        worker.__init__(worker.library, worker.mode)  # type: ignore[misc]  # the engine's functions refer to it


def _end() -> None:
    for worker in list(_workers.values()):
        connection = worker.connection
        if connection is not None:
            process.remove(connection.started.path)
            connection.started.process.kill()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
atexit.register(_end)
