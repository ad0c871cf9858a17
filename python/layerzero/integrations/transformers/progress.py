"""One line on standard error about work that takes longer than two seconds, in a terminal alone; each step is logged."""

import contextlib
import logging
import threading
from collections.abc import Iterator

from tqdm import tqdm

PATIENCE = 2.0  # seconds
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
            yield
        finally:
            _now.line = None


def step(text: str) -> None:
    """Says what is done from here on."""
    _log.debug("%s", text)
    line = getattr(_now, "line", None)
    if line is not None:
        line.set_description_str(text, refresh=False)
        line.update()
