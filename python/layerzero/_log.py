"""One line for what a user should know of a selection; silent unless the logger `layerzero` is asked."""

import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Sequence

from layerzero.errors import LayerZeroLayoutWarning

_logger = logging.getLogger("layerzero")
_logger.addHandler(logging.NullHandler())
_told: set[tuple[str, str]] = set()
_guessed: dict[tuple[str, int, str], float] = {}
_MOST_TOLD = 1000  # then silence: messages may differ in every call


def selected(operation: str, kernel_id: str, platform: str, libraries: Sequence[str] | None) -> None:
    """A choice that the policy wants logged, or, with `libraries`, a reference where another kernel should have been:
    a warning, once for each operation and kind of device, with what to install."""
    if libraries is None:
        _logger.info("%s: %s", operation, kernel_id)
    elif (operation, platform) not in _told:
        _told.add((operation, platform))
        from layerzero.backends.report import advice

        _logger.warning("%s runs on its reference %s (%s): %s", operation, kernel_id, platform, advice(libraries))


def failed(operation: str, text: str) -> None:
    """A kernel that failed and was answered for: one line for each message."""
    if (operation, text) not in _told and len(_told) < _MOST_TOLD:
        _told.add((operation, text))
        _logger.warning("%s: %s", operation, text)


def guessed(text: str, interval: float) -> None:
    """Warns of a layout that was guessed: each place in the program once about these shapes, again after `interval` s."""
    frame, level, internal = sys._getframe(1), 2, _internal()  # what called is C: the caller's frame is next
    while frame.f_back is not None and frame.f_code.co_filename.startswith(internal):
        frame, level = frame.f_back, level + 1
    place, now = (frame.f_code.co_filename, frame.f_lineno, text), time.monotonic()
    if now - _guessed.get(place, -math.inf) < interval:
        return
    warnings.warn(text, LayerZeroLayoutWarning, stacklevel=level)  # raises where the user wants it to
    if len(_guessed) >= _MOST_TOLD:
        _guessed.clear()
    _guessed[place] = now


def _internal() -> tuple[str, ...]:
    """Folders whose code calls operations for others."""
    modules = [sys.modules.get(name) for name in ("layerzero", "torch")]
    return tuple(os.path.dirname(m.__file__) + os.sep for m in modules if m is not None and m.__file__)
