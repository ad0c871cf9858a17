"""Whether the library behind a descriptor's rows works: its adapters are imported and its probe runs, once a process.

Nothing is imported before a selection would take one of the library's kernels, or a report asks. A library that ends the
process when it is imported (a segmentation fault) cannot be caught here: a policy that denies its source keeps it out.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any

LONGEST_ERROR = 600  # characters
PATIENCE = 120.0  # seconds that a thread waits for another one that is trying a library
_turn = threading.Lock()
_done: dict[Hashable, str] = {}


class _Here(threading.local):
    """What this thread is in the middle of."""

    keys: frozenset[Hashable] = frozenset()


_here = _Here()


def _new_turn() -> None:
    global _turn
    _turn = threading.Lock()  # of a forked child: the thread that held the parent's is not there


os.register_at_fork(after_in_child=_new_turn)


def prove(backend: str, probe: str, adapters: tuple[str, ...]) -> str | None:
    """The engine's `prove` hook: why the library cannot be used, "" where it can, None where it cannot be tried now."""
    if probe and _is_capturing():
        return _done.get((backend, probe, adapters))  # a probe's launches would become part of the graph
    return once((backend, probe, adapters), lambda: _error_of(probe, adapters))


def once(key: Hashable, work: Callable[[], str]) -> str | None:
    """What `work` gave when it first ran. None: this thread is inside of it, or another is and does not come to an end.

    Threads wait for each other at most PATIENCE: one that holds an import lock may be waited for by the one that works.
    """
    if key in _done:
        return _done[key]
    outer = _here.keys
    if key in outer or (not outer and not _turn.acquire(timeout=PATIENCE)):
        return None
    turn = _turn
    _here.keys = outer | {key}
    try:
        if key not in _done:
            _done[key] = work()
        return _done[key]
    finally:
        _here.keys = outer
        if not outer:
            turn.release()


def load(adapter: str) -> Callable[..., Any]:
    """The function of "module:function"."""
    module, _, name = adapter.partition(":")
    if not module or not name:
        raise ImportError(f"wanted module:function, got {adapter!r}")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"wanted a function, got {type(function).__name__}")
    return function


def _text(adapter: str, error: BaseException) -> str:
    text = f"{adapter}: {type(error).__name__}: {error}"
    return text if len(text) <= LONGEST_ERROR else text[: LONGEST_ERROR - 3] + "..."


def _error_of(probe: str, adapters: tuple[str, ...]) -> str:
    for adapter in (*adapters, probe) if probe else adapters:
        try:
            function = load(adapter)
            if adapter == probe:
                _run(function)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a library must not end the process
            return _text(adapter or "a kernel without an adapter", error)
    return ""


def _run(probe: Callable[[], Any]) -> None:
    """Runs the probe in a thread of its own: the caller's modes (autocast, inference, a default device) are not its."""
    errors: list[BaseException] = []
    keys = _here.keys

    def target() -> None:
        _here.keys = keys
        try:
            probe()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, name="layerzero probe", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _is_capturing() -> bool:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return bool(cuda and cuda.is_initialized() and cuda.is_current_stream_capturing())
