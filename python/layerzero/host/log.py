"""Messages about selections: log lines on request (log_selections, LAYERZERO_VERBOSE), warnings always."""

import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from layerzero.errors import LayerZeroLayoutWarning, LayerZeroReferenceWarning

_logger = logging.getLogger("layerzero")
_logged: set[tuple[str, str]] = set()
_warned: dict[tuple[str, int, str], float] = {}
failures: dict[tuple[str, str], int] = {}  # counts of failed kernels, by operation and kernel id
json_records: Callable[..., None] | None = None  # emits messages as JSON records (telemetry.records); None: text
_MOST_MESSAGES = 1000  # after that no more messages: they may differ in every call


def times_requested() -> bool:
    """True if LAYERZERO_VERBOSE=2 requests a line with the time of each call."""
    return os.environ.get("LAYERZERO_VERBOSE") == "2"


def line(text: str) -> None:
    """Emits a requested line: through logging if the program has configured it for INFO, else on standard error."""
    if _logger.isEnabledFor(logging.INFO) and _logger.hasHandlers():
        _logger.info("%s", text)
    elif sys.stderr is not None:
        print(f"layerzero: {text}", file=sys.stderr)


def record(text: str) -> None:
    """Emits a JSON record as a line of its own, without a prefix, in the same way."""
    if _logger.isEnabledFor(logging.INFO) and _logger.hasHandlers():
        _logger.info("%s", text)
    elif sys.stderr is not None:
        print(text, file=sys.stderr)


def log_selection(operation: str, kernel_id: str, platform: str, libraries: Sequence[str] | None) -> None:
    """Logs a selection; with `libraries`, a reference was chosen although other kernels exist: warns once for each
    operation and kind of device, and says what to install."""
    if libraries is None:
        if json_records is None:  # a record of the selection itself is emitted instead
            line(f"{operation}: {kernel_id}")
    elif (operation, platform) not in _logged:
        _logged.add((operation, platform))
        from layerzero.backends.report import advice

        text = f"{operation} runs on its reference {kernel_id} ({platform}): {advice(libraries)}"
        try:
            warnings.warn(text, LayerZeroReferenceWarning, stacklevel=caller()[1])
        except LayerZeroReferenceWarning:  # a filter made it an error, but the call is correct
            _logger.warning("%s", text)


def log_failure(operation: str, text: str) -> None:
    """Logs a kernel that failed and had a fallback, once for each message. `text` begins with the kernel's id."""
    kernel = (operation, text.partition(" ")[0])
    failures[kernel] = failures.get(kernel, 0) + 1
    if (operation, text) not in _logged and len(_logged) < _MOST_MESSAGES:
        _logged.add((operation, text))
        if json_records is not None:
            json_records("failure", operation, kernel[1], message=text)
        else:
            _logger.warning("%s: %s", operation, text)


def warn_guessed_layout(text: str, interval: float) -> None:
    """Warns of a guessed layout, once for each place in the program and set of shapes, again after `interval` s."""
    frame, level = caller()
    place, now = (frame.f_code.co_filename, frame.f_lineno, text), time.monotonic()
    if now - _warned.get(place, -math.inf) < interval:
        return
    warnings.warn(text, LayerZeroLayoutWarning, stacklevel=level)  # raises if a warning filter says so
    if len(_warned) >= _MOST_MESSAGES:
        _warned.clear()
    _warned[place] = now


def caller() -> tuple[Any, int]:
    """Returns the first frame outside LayerZero and torch, and its stacklevel for the calling function."""
    frame, level, internal = sys._getframe(2), 2, _internal()  # the hook is called from C: the caller's frame is next
    while frame.f_back is not None and frame.f_code.co_filename.startswith(internal):
        frame, level = frame.f_back, level + 1
    return frame, level


def _internal() -> tuple[str, ...]:
    """Returns the folders whose code calls operations for others."""
    modules = [sys.modules.get(name) for name in ("layerzero", "torch")]
    return tuple(os.path.dirname(m.__file__) + os.sep for m in modules if m is not None and m.__file__)
