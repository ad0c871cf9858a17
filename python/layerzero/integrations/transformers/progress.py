"""One line on standard error about work that takes longer than two seconds, in a terminal alone; each step is logged."""

import contextlib
import logging
import threading
from collections.abc import Iterator

from tqdm import tqdm

PATIENCE = 2.0  # seconds
_LEAST = 0.2  # seconds between two refreshes
_log = logging.getLogger("layerzero.kernelize")
_now = threading.local()


@contextlib.contextmanager
def shown(what: str, quiet: bool) -> Iterator[None]:
    """Shows the steps of what this thread does within; work within such work has no line of its own."""
    if quiet or getattr(_now, "line", None) is not None:
        yield
        return
    given = {"delay": PATIENCE, "miniters": 1, "leave": False, "disable": None}
    with tqdm(bar_format=what + ": {desc}, {elapsed}", **given) as _now.line:
        try:
            with contextlib.nullcontext() if _now.line.disable else _refreshed(_now.line):
                yield
        finally:
            _now.line = None


@contextlib.contextmanager
def _refreshed(line: tqdm) -> Iterator[None]:
    """tqdm looks at the time in `update` alone, and one step may take long."""
    ended = threading.Event()

    def refresh() -> None:
        while not ended.wait(max(PATIENCE, _LEAST)):
            line.update()

    timer = threading.Thread(target=refresh, name="layerzero-progress", daemon=True)
    timer.start()
    try:
        yield
    finally:
        ended.set()
        timer.join()


def step(text: str) -> None:
    """Says what is done from here on."""
    _log.debug("%s", text)
    line = getattr(_now, "line", None)
    if line is not None:
        line.set_description_str(text, refresh=False)
        line.update()
