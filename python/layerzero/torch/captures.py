"""Work that must not become part of a CUDA graph while one is being captured."""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from layerzero.host.policy import policy_in_force

DEVICE = "cuda"
# Captures of this process, and moves of weights, which wait for the device: that would end the capture of another thread.
ONE_AT_A_TIME = threading.RLock()

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_planned: set[tuple[Any, ...]] = set()


@contextlib.contextmanager
def away_from_captures(device: str) -> Iterator[None]:
    """On CUDA, "cuda" or "cuda:1": works on a stream of its own of that device, or of the current one, and allocates without
    ending a capture of this or of another thread."""
    if device.partition(":")[0] != "cuda":
        yield
        return
    driver, mode = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(_RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        with torch.cuda.device(device), torch.cuda.stream(_stream_outside_captures()):
            yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def _stream_outside_captures() -> torch.cuda.Stream:
    """Returns one of torch's streams, which are a ring: the next one may be the stream of a capture."""
    while True:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            if not torch.cuda.is_current_stream_capturing():
                return stream


class Recorded(NamedTuple):
    """A captured call: what runs it again, its results, and the bytes that it took in the capture besides these."""

    replay: Callable[[], Any]
    result: Any
    extra_bytes: int


def warm_up(run: Callable[[], Any], iterations: int) -> None:
    """Runs on a side stream before a capture: libraries make their handles, plan and allocate there. The handles of cuBLAS and
    cuDNN are made even if `run` does not need them yet."""
    stream, side = torch.cuda.current_stream(), _stream_outside_captures()
    side.wait_stream(stream)
    with torch.cuda.stream(side):
        _make_handles()
        for _ in range(iterations):
            run()
    stream.wait_stream(side)


def _make_handles() -> None:
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            square = torch.ones(16, 16, device=DEVICE, dtype=dtype)
            torch.mm(square, square)
            torch.nn.functional.conv2d(square[None, None], square[None, None, :3, :3])


@contextlib.contextmanager
def capture(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Captures what is called within; its errors alone are raised. After a capture that failed torch draws random numbers and
    runs on the stream as before; `pool` is of no use any more, since torch still records allocations into it."""
    body: Exception | None = None
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            try:
                yield
            except Exception as error:
                body = error
                raise
    except Exception as error:
        if error is not body:  # torch could not end the capture
            _restore(stream)
        if body is None or error is body:
            raise
        raise body from error  # which says only that the capture was invalidated


def _restore(stream: torch.cuda.Stream) -> None:
    """Where a capture was invalidated torch leaves its stream current and the generator of the device in capture mode, so that
    every random number drawn after it is an error. The end of the next capture that works ends that mode."""
    torch.cuda.set_stream(stream)
    with contextlib.suppress(Exception):  # the next call reports the error of an abandoned capture
        wait()
    with contextlib.suppress(Exception):
        number = torch.zeros(1, device=DEVICE)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            number.add_(1)


def replay_of(warm_up_run: Callable[[], Any], run: Callable[[], Any], pool: Any) -> Callable[[], None]:
    """Captures `run` without executing it, and returns a function that replays it. `warm_up_run` runs before, perhaps several
    times; in strict mode each of its kernels needs a proof."""
    keys = policy_in_force()["keys"]
    warm_up(warm_up_run, keys["graph.warmup_iterations"]["value"])
    if keys["graph_strict_mode"]["value"]:
        from layerzero import graphs

        graphs.verify(warm_up_run)
    graph = torch.cuda.CUDAGraph()
    with capture(graph, pool):
        run()
    return graph.replay


def record(run: Callable[[], Any], iterations: int) -> Recorded:
    """Captures `run` after `iterations` on a side stream, and once more where waiting for the device is an error. Raises what
    the capture raised."""
    warm_up(run, iterations)
    wait()
    try:
        torch.cuda.set_sync_debug_mode("error")  # names the call, which a failed capture does not
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    wait()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with capture(graph):
        result = run()
    results = sum(t.nbytes for t in (result if isinstance(result, tuple | list) else (result,)) if torch.is_tensor(t))
    extra = torch.cuda.max_memory_allocated() - before - results
    return Recorded(graph.replay, result, max(0, extra))


def wait() -> None:
    torch.cuda.synchronize()


def free_bytes() -> int:
    """Returns the bytes of the current device that nothing but torch's allocator holds."""
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()


def plans_first(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Of an adapter whose library plans, allocates or loads code at its first call of a kind, which fails inside a
    capture: before a captured call the engine calls `before_capture`, which makes one with memory of its own, once."""
    function.before_capture = functools.partial(_plan, function)  # type: ignore[attr-defined]
    return function


def _plan(function: Callable[..., torch.Tensor], *arguments: Any) -> None:
    kind = (function, torch.is_grad_enabled(), *map(_kind, arguments))
    if kind in _planned:
        return
    device = next((str(a.device) for a in arguments if isinstance(a, torch.Tensor) and a.is_cuda), DEVICE)
    with away_from_captures(device):
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
