"""Work that must not become part of a CUDA graph while one is being captured."""

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_planned: set[tuple[Any, ...]] = set()


@contextlib.contextmanager
def away_from_captures(device: str) -> Iterator[None]:
    """On CUDA: works on a stream of its own, and allocates without ending a capture of this or of another thread."""
    if device != "cuda":
        yield
        return
    driver, mode = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(_RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def plans_first(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Of an adapter whose library plans, allocates or loads code at its first call of a kind, which fails inside a
    capture: before a captured call the engine calls `before_capture`, which makes one with memory of its own, once."""
    function.before_capture = functools.partial(_plan, function)  # type: ignore[attr-defined]
    return function


def _plan(function: Callable[..., torch.Tensor], *arguments: Any) -> None:
    kind = (function, torch.is_grad_enabled(), *map(_kind, arguments))
    if kind in _planned:
        return
    with away_from_captures("cuda"):
        function(*map(_like, arguments))
        torch.cuda.current_stream().synchronize()
    _planned.add(kind)


def _kind(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.shape, value.stride(), value.dtype, value.device, value.requires_grad


def _like(value: Any) -> Any:
    """Returns memory of its own for a tensor of the device."""
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return value
    own = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return own.requires_grad_(value.requires_grad)
