"""LAYERZERO_VERBOSE=2: a line with kernel, time and tensors of each call of an operation: of a function, of
torch.ops.layerzero, and of each step of a program (a kernelized decoder).

For debugging only: each call waits for its device, and the kernel of a function call is selected a second time. The line of a
program's step has the time of that step alone.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from layerzero import _layerzero
from layerzero.host import log

_inside = threading.local()
_started: dict[int, float] = {}  # by thread: one of torch's pool has no threading.local that lasts
_TAKE_FUNCTION = (
    "check",
    "explain",
    "prepare",
    "which",
    "call_differentiable",
)  # functions of _layerzero that take an operation as their first argument


def install() -> None:
    """Replaces each operation by a timed function, and lets the inspection functions of the engine take either."""
    for name in _TAKE_FUNCTION:
        setattr(_layerzero, name, _unwrapping(getattr(_layerzero, name)))
    make_program = _layerzero.program
    _layerzero.program = lambda values, steps: make_program(values, [(_own(step[0]), *step[1:]) for step in steps])
    for name, function in _layerzero.ops.items():
        _layerzero.ops[name] = _timed(function)
    _layerzero.time_calls(_started_kernel, _ended_kernel)


def _own(function: Any) -> Any:
    return getattr(function, "__wrapped__", function)


def _unwrapping(question: Callable[..., Any]) -> Callable[..., Any]:
    return lambda function, *rest: question(_own(function), *rest)


def _timed(function: Any) -> Any:
    @functools.wraps(function, assigned=("__name__", "__qualname__", "__doc__"))
    def call(*args: Any, **kwargs: Any) -> Any:
        torch = sys.modules.get("torch")
        if getattr(_inside, "call", False) or (torch is not None and torch.compiler.is_compiling()):
            return function(*args, **kwargs)
        _inside.call = True
        try:
            on_cuda = any(getattr(getattr(v, "device", None), "type", "") == "cuda" for v in (*args, *kwargs.values()))
            _wait(torch, on_cuda)
            start = time.perf_counter()
            result = function(*args, **kwargs)
            _wait(torch, on_cuda)
            took = time.perf_counter() - start
            _emit(function.__name__, _kernel(function, args, kwargs), took, _tensors(args, kwargs))
            return result
        finally:
            _inside.call = False

    return call


def _emit(name: str, kernel_id: str, took: float, tensors: str) -> None:
    log.line(f"{name}: {kernel_id} {took * 1e6:.1f} us, {tensors}")


def _started_kernel(on_device: bool) -> None:
    """Notes the start of a kernel that an operator of torch or a program runs."""
    _wait(sys.modules.get("torch"), bool(on_device))
    _started[threading.get_ident()] = time.perf_counter()


def _ended_kernel(name: str, kernel_id: str, tensors: str, on_device: bool) -> None:
    _wait(sys.modules.get("torch"), bool(on_device))
    took = time.perf_counter() - _started[threading.get_ident()]
    if not getattr(_inside, "call", False):
        _emit(name, kernel_id, took, tensors)


def _wait(torch: Any, on_device: bool) -> None:
    """Waits for the CUDA device, except while a graph is captured."""
    if torch is not None and on_device and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


def _kernel(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = {key: value for key, value in kwargs.items() if key not in ("out", "generator")}
    try:
        return _layerzero.which(function, args, given)[0]
    except Exception:  # an argument that only the call itself accepts
        return "?"


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    tensors = [v for v in (*args, *kwargs.values()) if hasattr(v, "dtype") and hasattr(v, "shape")]
    return " ".join(f"{str(t.dtype).rpartition('.')[2]}[{','.join(map(str, t.shape))}]" for t in tensors)
