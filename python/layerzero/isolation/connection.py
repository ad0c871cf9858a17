"""One running worker: its requests and responses. The messages and tensors of calls are C++ (bindings/python/worker.h), which
calls the methods below for what is rare: errors, warnings, tensors on devices and unusual ones.
"""

import time
from typing import Any, NoReturn

from layerzero import _layerzero
from layerzero.errors import KernelRefusedError, VersionMismatchError, WorkerError
from layerzero.host.policy import Isolation
from layerzero.isolation import devices, failures, process, protocol
from layerzero.isolation.protocol import Kind, Unsendable

FIX = "`layerzero health show` has the breaker; `layerzero doctor` the workers"


class Lost(Exception):
    """A worker's CUDA context is lost."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document["text"])
        self.document = document


class Connection:
    """One running worker. Its owner's lock guards it, so there is one request at a time."""

    def __init__(self, library: str, started: process.Started, settings: Isolation) -> None:
        import torch

        from layerzero.torch import attach

        attach.attach_if_imported()  # C++ reads tensors

        self.torch, self.library, self.started, self.settings = torch, library, started, settings
        self.channel = started.channel
        self.loaded: dict[str, int] = {}  # adapter -> its number in the worker
        self.began = time.monotonic()

    @property
    def _name(self) -> str:
        return f"the worker of {self.library}"

    @property
    def is_busy(self) -> bool:
        """True while a call runs there."""
        return bool(_layerzero.worker_state(self.channel)["busy"])

    @property
    def is_pinned(self) -> bool:
        """True once a fork has taken the memory that was in use."""
        return bool(_layerzero.worker_state(self.channel)["pinned"])

    def hello(self, end: float) -> None:
        """Waits for READY and checks the versions."""
        message = self._response(end)
        if message is None:
            raise WorkerError(self._name, "READY", f"nothing in {self.settings.start_timeout_s:g} s")
        process.remove(self.started.path)
        ready = protocol.read_json(message, Kind.READY, protocol=int, version=str, build=str, torch=str, pid=int)
        ours = protocol.VERSION, *_layerzero.build_id()
        theirs = ready["protocol"], ready["version"], ready["build"]
        if theirs[:2] != ours[:2]:
            raise VersionMismatchError(
                self._name, f"LayerZero {ours[1]}", theirs[1], "install the same version in its container"
            )

    def load(self, adapters: tuple[str, ...], probe: str, end: float) -> str:
        """Imports adapters there, and runs the probe. Returns the error, or ""."""
        new = [adapter for adapter in adapters if adapter not in self.loaded]
        _layerzero.worker_send(self.channel, protocol.json_message(Kind.LOAD, {"adapters": new, "probe": probe}))
        message = self._response(end)
        if message is None:
            raise WorkerError(self._name, f"an import within {self.settings.start_timeout_s:g} s", "no answer", FIX)
        error = protocol.read_json(message, Kind.LOADED, error=str)["error"]
        if not error:
            self.loaded |= {adapter: len(self.loaded) + i for i, adapter in enumerate(new)}
        return error

    def _response(self, end: float) -> bytes | None:
        """Returns the next response, or None at the time `end`; EOFError: the worker has ended."""
        return _layerzero.worker_receive(self.channel, max(end - time.monotonic(), 0.0))

    def call(self, function: int, arguments: tuple[Any, ...], written: int, end: float) -> Any:
        """Runs a function there. `written`: a bit for each argument that it writes."""
        if written:
            self._check_overlap(arguments, written)
        left = max(end - time.monotonic(), 0.0)
        return _layerzero.worker_call(self.channel, self, function, arguments, written, left)

    # ---- called by C++ in a call

    def refuse(self, wanted: str, got: str) -> NoReturn:
        """Raises the refusal of an argument."""
        raise KernelRefusedError(self._name, wanted, got)

    def plain(self, value: Any) -> Any:
        """Returns a tensor as one that C++ can read: subclasses, conjugated and negated ones as copies."""
        if not isinstance(value, self.torch.Tensor):
            raise Unsendable(f"wanted a tensor, number, text or None, got {type(value).__name__}")
        if value.layout is not self.torch.strided or value.device.type not in ("cpu", "cuda"):
            self.refuse("dense tensors on a CPU or CUDA device", f"{value.layout} on {value.device}")
        return as_plain(self.torch, value)

    def share(self, tensor: Any) -> tuple[int, bytes]:
        """Returns a device's tensor as a message has it. Inside of a capture CUDA hands out no memory, and would end it."""
        if devices.is_capturing():
            self.refuse("no capture of a CUDA graph", "one")
        return devices.shared(tensor)

    def ready(self, arguments: tuple[Any, ...]) -> None:
        """Waits for the tensors on devices."""
        devices.ready([a for a in arguments if isinstance(a, self.torch.Tensor) and a.device.type == "cuda"])

    def open(
        self, handle: bytes, code: int, bits: int, lanes: int, shape: tuple[int, ...], strides: tuple[int, ...], at: int
    ) -> Any:
        """Returns a copy of a result on a device, made before the worker may use its memory again."""
        copy = devices.opened(handle, (code, bits, lanes), shape, strides, at).clone()
        self.torch.cuda.current_stream(copy.device).synchronize()
        return copy

    def failed(self, message: bytes) -> NoReturn:
        """Raises the error of an ERROR message."""
        document = protocol.read_json(message, Kind.ERROR, **failures.FIELDS)
        if document["lost"]:
            raise Lost(document)
        raise failures.error_of(document, self._name)

    def warn(self, text: bytes) -> None:
        """Shows the warnings of a call."""
        failures.warn(protocol.read_warnings(text))

    def _check_overlap(self, arguments: tuple[Any, ...], written: int) -> None:
        """A tensor that shares some of its memory with a written one would be a copy of its own in the worker."""
        tensors = [a for a in arguments if isinstance(a, self.torch.Tensor) and a.device.type == "cpu" and a.numel()]
        for one in (a for i, a in enumerate(arguments) if written >> i & 1 and any(a is t for t in tensors)):
            first, last = _range(one)
            for other in tensors:
                begin, end = _range(other)
                same = begin == first and other.shape == one.shape and other.stride() == one.stride()
                if other is one or same or end <= first or last <= begin:
                    continue
                if one.nbytes == last - first or other.nbytes == end - begin:  # one of them has no gaps
                    raise Unsendable("wanted written tensors that share no memory with others, got two that do")


def as_plain(torch: Any, value: Any) -> Any:
    """Returns a tensor whose memory holds its numbers: itself, or a copy."""
    if type(value) is torch.Tensor and not value.is_conj() and not value.is_neg():
        return value
    with torch.no_grad():
        return torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value)


def _range(tensor: Any) -> tuple[int, int]:
    """Returns the addresses of the first byte and past the last one."""
    begin = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.dtype.itemsize
