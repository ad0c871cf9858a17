"""Tests whether a descriptor's library works: checks its build, imports its adapters and runs its probe, once per process.

Nothing is imported before a selection would take one of the library's kernels, or a report needs it. If the policy
isolates the library, its worker does both; else another process imports it first, once for each version, so that an import
that crashes is a reason.
"""

import importlib
import operator
import os
import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any

from layerzero.host import policy

LONGEST_ERROR = 600  # characters
PATIENCE = 120.0  # seconds that a thread waits for another one that tests a library
_turn = threading.Lock()
_done: dict[Hashable, str] = {}


class _Here(threading.local):
    """Keys of the work that this thread is doing."""

    keys: frozenset[Hashable] = frozenset()


_here = _Here()


def _new_turn() -> None:
    global _turn
    _turn = threading.Lock()  # for a forked child, which lacks the thread that held the parent's lock


os.register_at_fork(after_in_child=_new_turn)


def prove(backend: str, probe: str, adapters: tuple[str, ...]) -> str | None:
    """The engine's `prove` hook: why the library cannot be used, "" if it can, None if it cannot be tested now."""
    if probe and _is_capturing():
        return _done.get((backend, probe, adapters))  # launches of a probe would be captured
    return once((backend, probe, adapters), lambda: _test(backend, probe, adapters))


def _test(backend: str, probe: str, adapters: tuple[str, ...]) -> str:
    from layerzero.backends import library_of_adapter, modules_of

    settings = policy.isolation()
    mode = settings.mode_of(backend)
    library_of_adapter.update(dict.fromkeys(adapters, backend))
    if mode != policy.IN_PROCESS:
        from layerzero.isolation import client

        return client.prove(backend, mode, adapters, probe)
    if error := _unfit(backend):
        return error
    if settings.try_imports and not policy.in_worker and any(name not in sys.modules for name in modules_of(backend)):
        from layerzero.isolation import trial

        if error := trial.error_of(backend, modules_of(backend), adapters):
            return error
    return error_of(probe, adapters)


def _unfit(backend: str) -> str:
    """Returns why a backend's library is not to be imported into this process, or ""."""
    from layerzero import backends
    from layerzero.backends import compatibility

    return compatibility.check(backend, backends.libraries().get(backend, {}).get("requires", []))


def once(key: Hashable, work: Callable[[], str]) -> str | None:
    """Returns the result of the first run of `work`; None if this thread or a stuck one is running it.

    Threads wait at most PATIENCE for each other, because the running thread may wait for an import lock of the waiting
    one.
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
    """Returns the function of "module:function" or "module:object.method"."""
    module, _, name = adapter.partition(":")
    if not module or not name:
        raise ImportError(f"wanted module:function, got {adapter!r}")
    function = operator.attrgetter(name)(importlib.import_module(module))
    if not callable(function):
        raise TypeError(f"wanted a function, got {type(function).__name__}")
    return function


def _text(adapter: str, error: BaseException) -> str:
    text = f"{adapter}: {type(error).__name__}: {error}"
    return text if len(text) <= LONGEST_ERROR else text[: LONGEST_ERROR - 3] + "..."


def error_of(probe: str, adapters: tuple[str, ...]) -> str:
    """Imports the adapters and runs the probe, here. Returns the error, or ""."""
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
    """Runs the probe in a separate thread, without the caller's modes (autocast, inference, a default device)."""
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
