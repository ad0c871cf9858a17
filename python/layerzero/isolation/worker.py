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
from layerzero.isolation.protocol import Kind, ProtocolError

_PR_SET_PDEATHSIG, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = 1, -1, -3
_KEPT, _LARGE = 64 * 2**20, 32 * 2**20  # bytes of free memory that stay; of a tensor that does not come from it


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


def _keep_memory() -> None:
    """Memory of one call's tensors is the next one's. Where it goes back to the system in between, as glibc decides in a process
    whose heap has little else, the page faults take longer than the kernel."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


class Worker:
    """The loop of requests and responses. Calls are C++ (bindings/python/worker_serve.cpp), which calls the methods below."""

    def __init__(self, channel: Any) -> None:
        import torch

        from layerzero.torch import attach

        attach.attach_if_imported()  # C++ reads tensors

        self.torch, self.channel = torch, channel
        self.functions: list[Callable[..., Any]] = []
        self.recorder = failures.Recorder()
        self.devices: set[int] = set()  # of the running call

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
        self._answer(Kind.READY, ready)
        self.torch.set_grad_enabled(False)
        while True:
            message = _layerzero.worker_serve(self.channel, self)
            try:
                document = protocol.read_json(message, Kind.LOAD, adapters=list, probe=str)
            except ProtocolError as error:
                self._answer(Kind.ERROR, failures.document_of(error))
            else:
                self._answer(
                    Kind.LOADED, {"error": self._load(tuple(map(str, document["adapters"])), document["probe"])}
                )

    def _answer(self, kind: Kind, document: dict[str, Any]) -> None:
        _layerzero.worker_send(self.channel, protocol.json_message(kind, document))

    def _load(self, adapters: tuple[str, ...], probe: str) -> str:
        from layerzero.backends import proof
        from layerzero.backends.current_device import on_device_of_tensors

        error = proof.error_of(probe, adapters)
        if not error:
            self.functions += [on_device_of_tensors(proof.load(adapter)) for adapter in adapters]
        self.recorder.take()
        return error

    # ---- called by C++ in a call

    def set_threads(self, threads: int) -> None:
        """Sets torch's threads to the parent's."""
        self.torch.set_num_threads(threads)

    def plain(self, result: Any) -> Any:
        """Returns a result as a tensor that C++ can read."""
        if not isinstance(result, self.torch.Tensor):
            raise TypeError(f"wanted a tensor, a tuple of tensors or None, got {type(result).__name__}")
        from layerzero.isolation.connection import as_plain

        return as_plain(self.torch, result)

    def open(
        self, handle: bytes, code: int, bits: int, lanes: int, shape: tuple[int, ...], strides: tuple[int, ...], at: int
    ) -> Any:
        """Returns an argument over the memory of a device."""
        from layerzero.isolation import devices

        tensor = devices.opened(handle, (code, bits, lanes), shape, strides, at)
        self.devices.add(tensor.device.index)
        return tensor

    def share(self, tensor: Any) -> tuple[int, bytes]:
        """Returns a result in the memory of a device as a message has it."""
        from layerzero.isolation import devices

        self.devices.add(tensor.device.index)
        return devices.shared(tensor)

    def finish(self) -> None:
        """Waits for the devices of the call: errors of the kernel are this call's."""
        devices = list(self.devices)
        self.devices.clear()
        for device in devices:
            self.torch.cuda.synchronize(device)

    def take_warnings(self) -> bytes:
        """Returns the warnings of the call as JSON."""
        return protocol.warnings_text(self.recorder.take()) if self.recorder.found else b""

    def error_message(self, error: BaseException) -> bytes:
        """Returns the ERROR message of an exception."""
        self.recorder.take()
        self.devices.clear()
        return protocol.json_message(Kind.ERROR, failures.document_of(error))


def run(arena: int, size: int, receive: int, send: int, memory_mb: int) -> None:
    """Serves until the parent ends."""
    faulthandler.enable()
    _limit(memory_mb)
    _keep_memory()
    channel = _layerzero.worker_open(arena, size, receive, send, protocol.spin_us(), True)
    os.close(arena)
    try:
        Worker(channel).serve()
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
