"""What the policy exports: starts, replaces and stops it."""

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from layerzero import _layerzero
from layerzero.errors import NotInstalledError
from layerzero.host import watching
from layerzero.host.optional import need


class Closes(Protocol):
    def close(self) -> None: ...


_running: dict[str, tuple[Any, Closes]] = {}  # by key of the policy: what it was started with, and what stops it


def apply(wanted: tuple[str, str, float, bool, bool, bool] | None) -> None:
    """Makes what runs be what `wanted` says (see _layerzero.exports). Raises the first error; the others are tried."""
    listen, file, interval, spans, nvtx, records = wanted or ("", "", 0.0, False, False, False)
    makers: dict[str, tuple[Any, Callable[[Any], Closes]]] = {
        "metrics.listen": (listen, _serve),
        "metrics.file": ((file, interval) if file else None, lambda given: _File(*given)),
        "trace.opentelemetry": (spans, lambda _: _Spans()),
        "trace.nvtx": (nvtx, lambda _: _Ranges()),
        "log_json": (records, _records),
    }
    errors = []
    for key, (value, make) in makers.items():
        if key in _running and _running[key][0] != value:
            _running.pop(key)[1].close()
        if value and key not in _running:
            try:
                _running[key] = value, make(value)
            except Exception as error:
                errors.append(error)
    if errors:
        raise errors[0]


def _serve(listen: str) -> Closes:
    need("prometheus_client", what="metrics.listen")
    from layerzero.telemetry.server import MetricsServer

    host, _, port = listen.rpartition(":")
    return MetricsServer(host.strip("[]") or "127.0.0.1", int(port))


def _records(_: bool) -> Closes:
    from layerzero.telemetry.records import Records

    return Records()


class _File:
    """Writes the metrics every `interval` seconds, and once more at the end of the process."""

    def __init__(self, path: str, interval: float) -> None:
        need("prometheus_client", what="metrics.file")
        from layerzero.telemetry.prometheus import write

        self._write = lambda: write(os.path.expanduser(path))
        self._write()  # a path that cannot be written is an error now
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(interval,), name="layerzero metrics", daemon=True)
        self._thread.start()
        atexit.register(self._last)

    def _run(self, interval: float) -> None:
        while not self._end.wait(interval):
            self._try()

    def _try(self) -> None:
        try:
            self._write()
        except OSError:  # a full disk stops no service; the file's age shows it
            return

    def _last(self) -> None:
        self._end.set()
        self._try()

    def close(self) -> None:
        atexit.unregister(self._last)
        self._end.set()
        self._thread.join()


class _Spans:
    def __init__(self) -> None:
        need("opentelemetry-api", what="trace.opentelemetry")
        from layerzero.telemetry.trace import trace

        self._trace = trace().__enter__()

    def close(self) -> None:
        self._trace.__exit__(None, None, None)


class _Ranges:
    def __init__(self) -> None:
        handle = _layerzero.observe_by_nvtx()
        if handle is None:
            raise NotInstalledError(
                "trace.nvtx",
                "a build that found nvtx3/nvToolsExt.h",
                "one without it",
                "build it where CUDA's headers are",
            )
        self._handle = watching.watch(handle)

    def close(self) -> None:
        watching.stop(self._handle)


def _in_child() -> None:
    """Threads and sockets of the parent do not serve its children."""
    for key in ("metrics.listen", "metrics.file"):
        _running.pop(key, None)


os.register_at_fork(after_in_child=_in_child)
