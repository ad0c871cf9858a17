"""This process's side of the workers: one for each isolated library, and the functions that the engine calls instead of
the library's adapters.
"""

import atexit
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from layerzero import _layerzero
from layerzero.contracts import contracts, host_parameter_names
from layerzero.errors import KernelRefusedError, LayerZeroError, WorkerError
from layerzero.host import policy
from layerzero.host.policy import Isolation
from layerzero.isolation import failures, process
from layerzero.isolation.connection import FIX, Connection, Lost
from layerzero.isolation.protocol import Full, Hung, ProtocolError, Unsendable

FIRST_DELAY, LONGEST_DELAY = 0.1, 60.0  # seconds until a worker that ended is started again: doubled each time
STABLE = 60.0  # seconds of life after which an end counts as the first one


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
            raise WorkerError(f"the worker of {self.library}", "READY", f"its end: {how}", FIX) from None
        except BaseException:
            self._ended(connection)
            raise
        return connection

    def _restart(self) -> None:
        """On the starter, without the lock: calls are refused meanwhile."""
        with self.lock:
            if self.connection is not None or self.closed:  # a proof has started one
                self.starting = False
                return
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
        got = f"it ended ({self.last_end}) and is started again" if self.last_end else "it is starting"
        raise KernelRefusedError(f"the worker of {self.library}", "a running worker", got, "call again later")

    def run(self, adapter: str, arguments: tuple[Any, ...], written: int) -> Any:
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

    def _run(self, connection: Connection, adapter: str, arguments: tuple[Any, ...], written: int, end: float) -> Any:
        try:
            if adapter not in connection.loaded:
                if error := connection.load((adapter,), "", time.monotonic() + connection.settings.start_timeout_s):
                    raise _refused(self.library, adapter, error)
                self.adapters = tuple(dict.fromkeys((*self.adapters, adapter)))
            return connection.call(connection.loaded[adapter], arguments, written, end)
        except BaseException as error:
            self._raise(connection, error)

    def _raise(self, connection: Connection, error: BaseException) -> NoReturn:
        """With the lock: ends a worker that can serve no more, and raises what the caller gets for an error of a call."""
        name = f"the worker of {self.library}"
        try:
            raise error
        except Full:
            if connection.is_pinned:
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
            raise WorkerError(name, "a result", got, FIX) from None
        except Unsendable:
            raise _refused(self.library, "a call that fits into a message", str(error)) from None
        except ProtocolError:
            self._ended(connection)
            raise WorkerError(name, "an answer as the protocol has it", str(error), FIX) from None
        finally:
            if self.connection is connection and connection.is_busy:
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
    written = sum(1 << i for i in _written(kernel_id))

    def call(*arguments: Any) -> Any:
        try:
            return worker.run(adapter, arguments, written)
        except WorkerError as error:
            if written and not _on_cuda(arguments):  # the caller's tensors are as they were
                raise KernelRefusedError(error.field, error.wanted, error.got, error.fix) from error
            raise

    return call


def _on_cuda(arguments: tuple[Any, ...]) -> bool:
    import torch

    return any(isinstance(a, torch.Tensor) and a.device.type == "cuda" for a in arguments)


def _written(kernel_id: str) -> frozenset[int]:
    """Returns the numbers of the parameters that a kernel's operation writes."""
    found = set()
    for name in json.loads(_layerzero.functions_of(kernel_id)):
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
            _layerzero.worker_pin(connection.channel)


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
