"""The worker: a process that imports a library's adapters and runs them for its parent, one call at a time.

`python -m layerzero.isolation.worker --stdio ARENA`, or started with inherited files by process.py. What the library prints
goes to standard error. It ends with its parent: by the kernel's parent-death signal, and when the socket closes.
"""

import ctypes
import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from layerzero import _layerzero
from layerzero.isolation import failures, protocol
from layerzero.isolation.arena import Memory, dense_strides
from layerzero.isolation.protocol import DATA, REQUEST, RESPONSE, Kind, Place, ProtocolError, Word, aligned

SPIN_US = 50.0  # before it sleeps: the next call often follows at once
KNOWN = 64  # bodies of calls that are kept
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """This process gets SIGKILL when the thread that started it ends. `parent`: 0 if it cannot be seen from here."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(0)  # it ended before


def _limit(memory_mb: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_mb:
        size = memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


class Worker:
    """The loop of requests and responses."""

    def __init__(self, memory: Memory, receive: int, send: int) -> None:
        import torch

        self.torch, self.memory, self.receive, self.send = torch, memory, receive, send
        self.requests = self.responses = 0
        self.functions: list[Callable[..., Any]] = []
        self.known: dict[bytes, tuple[list[Any], set[int]]] = {}  # what _arguments() made of bodies
        self.recorder = failures.Recorder()
        self.spin_us = SPIN_US if (os.cpu_count() or 1) > 1 else 0.0

    def answer(self, message: bytes) -> None:
        """Sends a response."""
        self.memory.write(RESPONSE, message)
        self.responses += 1
        self.memory.ring(Word.RESPONSES, self.responses, Word.PARENT_SLEEPS, self.send)

    def next(self) -> bytes:
        """Returns the next request; EOFError when the parent has ended."""
        number = self.memory.wait(Word.REQUESTS, self.requests, Word.WORKER_SLEEPS, self.receive, self.spin_us, -1.0)
        self.requests = number or 0
        return self.memory.read(REQUEST)

    def serve(self) -> None:
        """Answers requests until the parent ends."""
        version, build = _layerzero.build_id()
        torch_version = str(self.torch.__version__)
        ready = {
            "protocol": protocol.VERSION,
            "version": version,
            "build": build,
            "torch": torch_version,
            "pid": os.getpid(),
        }
        self.answer(protocol.json_message(Kind.READY, ready))
        self.torch.set_grad_enabled(False)
        while True:
            message = self.next()
            try:
                self.answer(self._respond(message))
            except ProtocolError as error:
                self.answer(protocol.json_message(Kind.ERROR, failures.document_of(error)))

    def _respond(self, message: bytes) -> bytes:
        kind = protocol.kind_of(message)
        if kind == Kind.LOAD:
            return self._load(protocol.read_json(message, adapters=list, probe=str))
        if kind != Kind.CALL:
            raise ProtocolError(f"wanted a request, got {kind.name}")
        call = protocol.read_call(message)
        try:
            return self._call(call)
        except (ProtocolError, EOFError):
            raise
        except BaseException as error:  # SystemExit too: a kernel must not end the worker
            self.recorder.take()
            return protocol.json_message(Kind.ERROR, failures.document_of(error))

    def _load(self, document: dict[str, Any]) -> bytes:
        from layerzero.backends import proof

        adapters, probe = tuple(map(str, document["adapters"])), document["probe"]
        error = proof.error_of(probe, adapters)
        if not error:
            self.functions += [proof.load(adapter) for adapter in adapters]
        self.recorder.take()
        return protocol.json_message(Kind.LOADED, {"error": error})

    def _call(self, call: protocol.Call) -> bytes:
        if call.function >= len(self.functions):
            raise ProtocolError(f"wanted one of {len(self.functions)} functions, got number {call.function}")
        if call.threads and call.threads != self.torch.get_num_threads():
            self.torch.set_num_threads(call.threads)
        arguments, devices = self._arguments(call.body)
        result = self.functions[call.function](*arguments)
        results = list(result) if isinstance(result, tuple) else [result]
        for one in results:
            if one is not None and not isinstance(one, self.torch.Tensor):
                raise TypeError(f"wanted a tensor, a tuple of tensors or None, got {type(one).__name__}")
        places = self._places(results, call)
        for device in devices | {place.handle[0] for place in places if place and place.handle}:
            self.torch.cuda.synchronize(device)  # errors of the kernel are this call's
        return protocol.result_message(places, isinstance(result, tuple), self.recorder.take())

    def _arguments(self, body: bytes) -> tuple[list[Any], set[int]]:
        """Returns the arguments of a call and their CUDA devices. Calls of one kind have one body: theirs are made once."""
        if (found := self.known.get(body)) is not None:
            return found
        given = protocol.read_arguments(body)
        devices = {a.handle[0] for a in given if isinstance(a, Place) and a.handle}
        found = [self._tensor(a) if isinstance(a, Place) else a for a in given], devices
        if not devices:
            if len(self.known) >= KNOWN:
                self.known.clear()
            self.known[body] = found
        return found

    def _tensor(self, place: Place) -> Any:
        if place.handle is None:
            self.memory.check(place, DATA, self.memory.size)
            return self.memory.view(place)
        from layerzero.isolation import devices

        return devices.opened(place, self.memory.dtype_of(place))

    def _places(self, results: list[Any], call: protocol.Call) -> list[Place | None]:
        """Copies results on the CPU into the memory for outputs; asks for more if they do not fit."""
        host = [r for r in results if r is not None and r.device.type == "cpu"]
        need = sum(aligned(r.numel() * r.dtype.itemsize) for r in host)
        offset, room = call.room, call.room_bytes
        if need > room:
            self.answer(protocol.need_message(need))
            offset, room = protocol.read_room(self.next())
            if room < need or offset < DATA or offset + room > self.memory.size:
                raise ProtocolError(f"wanted {need} bytes for outputs, got {room} at {offset}")
        places: list[Place | None] = []
        for result in results:
            if result is None:
                places.append(None)
            elif result.device.type != "cpu":
                from layerzero.isolation import devices

                places.append(devices.shared(result, self.memory.number_of(result.dtype)))
            else:
                shape, number = tuple(result.shape), self.memory.number_of(result.dtype)
                strides = result.stride() if result.is_contiguous() else dense_strides(shape, result.stride())
                places.append(place := Place(number, shape, strides, offset))
                if result.numel():
                    self.memory.view(place).copy_(result)
                    offset += aligned(result.numel() * result.dtype.itemsize)
        return places


def run(arena: int, size: int, receive: int, send: int, memory_mb: int) -> None:
    """Serves until the parent ends."""
    faulthandler.enable()
    _limit(memory_mb)
    memory = Memory(arena, size)
    os.close(arena)
    memory.bytes[Word.MAGIC : Word.MAGIC + 8] = protocol.MAGIC.to_bytes(8, "little")
    try:
        Worker(memory, receive, send).serve()
    except (EOFError, OSError):
        os._exit(0)  # the parent has ended, and nothing of this process is worth its exit handlers


def from_parent(parent: int, socket: int, arena: int, size: int, memory_mb: int) -> None:
    """A worker with inherited files."""
    end_with(parent)
    os.dup2(2, 1)
    for inherited in (socket, arena):
        os.set_inheritable(inherited, False)  # programs that the library starts do not keep them open
    run(arena, size, socket, socket, memory_mb)


def main(arguments: list[str]) -> None:
    """A worker in a container: standard input and output are its socket, the arena is a file in a mounted folder."""
    path, size, memory_mb = arguments[0], int(arguments[1]), int(arguments[2])
    receive, send = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    run(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), size, receive, send, memory_mb)


if __name__ == "__main__":
    main(sys.argv[1:])
