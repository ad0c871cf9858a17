"""One line on standard error about work that takes longer than two seconds, in a terminal alone; each step is logged."""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator

PATIENCE = 2.0  # seconds
_log = logging.getLogger("layerzero.kernelize")
_now = threading.local()


class _Line:
    def __init__(self, what: str) -> None:
        self._what, self._text, self._began = what, "", time.monotonic()
        self._lock, self._shown, self._ended = threading.Lock(), False, False
        self._timer = threading.Timer(PATIENCE, self._show)  # a first step may take long itself
        self._timer.daemon = True
        self._timer.start()

    def step(self, text: str) -> None:
        self._text = text
        if self._shown:
            self._show()

    def _show(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._shown = True
            seconds = time.monotonic() - self._began
            print(f"\r{self._what}: {self._text}, {seconds:.0f} s\033[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._shown:
                print("\r\033[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def shown(what: str, quiet: bool) -> Iterator[None]:
    """Shows the steps of what this thread does within."""
    before = getattr(_now, "line", None)
    _now.line = None if quiet or before is not None or not sys.stderr.isatty() else _Line(what)
    try:
        yield
    finally:
        if _now.line is not None:
            _now.line.end()
        _now.line = before


def step(text: str) -> None:
    """Says what is done from here on."""
    _log.debug("%s", text)
    line = getattr(_now, "line", None)
    if line is not None:
        line.step(text)
