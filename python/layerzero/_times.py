"""LAYERZERO_VERBOSE=2: a line with kernel, time and tensors of each call of an operation.

For looking at a program, not for running one: each call waits for its device, and its kernel is asked for a second time.
Steps inside a program of layers (a kernelized decoder) are one call of the model and have no lines of their own.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from layerzero import _layerzero, _log

_inside = threading.local()
_TAKE_FUNCTION = (
    "check",
    "explain",
    "prepare",
    "which",
    "call_differentiable",
)  # of _layerzero, as their first argument


def install() -> None:
    """Puts a timed function in place of each operation, and lets the engine's questions take either."""
    for name in _TAKE_FUNCTION:
        setattr(_layerzero, name, _unwrapping(getattr(_layerzero, name)))
    make_program = _layerzero.program
    _layerzero.program = lambda values, steps: make_program(values, [(_own(step[0]), *step[1:]) for step in steps])
    for name, function in _layerzero.ops.items():
        _layerzero.ops[name] = _timed(function)


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
            wait = _wait_of(torch, args, kwargs)
            wait()
            start = time.perf_counter()
            result = function(*args, **kwargs)
            wait()
            took = time.perf_counter() - start
            _log.line(
                f"{function.__name__}: {_kernel(function, args, kwargs)} {took * 1e6:.1f} us, {_tensors(args, kwargs)}"
            )
            return result
        finally:
            _inside.call = False

    return call


def _wait_of(torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """Waits for the CUDA device of the call, except while a graph is captured."""
    on_cuda = any(getattr(getattr(v, "device", None), "type", "") == "cuda" for v in (*args, *kwargs.values()))
    if torch is None or not on_cuda or torch.cuda.is_current_stream_capturing():
        return lambda: None
    return torch.cuda.synchronize


def _kernel(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = {key: value for key, value in kwargs.items() if key not in ("out", "generator")}
    try:
        return _layerzero.which(function, args, given)[0]
    except Exception:  # an argument that only the call itself understands
        return "?"


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    tensors = [v for v in (*args, *kwargs.values()) if hasattr(v, "dtype") and hasattr(v, "shape")]
    return " ".join(f"{str(t.dtype).rpartition('.')[2]}[{','.join(map(str, t.shape))}]" for t in tensors)
