"""The process's end, where daemon threads run: it waits for their first calls, see bindings/python/gil.h."""

import atexit
import time

from layerzero import _layerzero


def _wait() -> None:
    while _layerzero.end():
        time.sleep(0.001)


def install() -> None:
    """Registers the wait. Called once by `import layerzero`."""
    atexit.register(_wait)
