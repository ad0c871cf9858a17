"""One line for what a user should know of a selection; silent unless the logger `layerzero` is asked."""

import logging
import warnings

from layerzero.errors import LayerZeroLayoutWarning

_logger = logging.getLogger("layerzero")
_logger.addHandler(logging.NullHandler())
_told: set[tuple[str, str]] = set()
_MOST_TOLD = 1000  # then silence: messages may differ in every call


def selected(operation: str, kernel_id: str, fallback: bool) -> None:
    """A fallback is a warning, once for each operation; other choices are logged where the policy says so."""
    if not fallback:
        _logger.info("%s: %s", operation, kernel_id)
    elif (operation, kernel_id) not in _told:
        _told.add((operation, kernel_id))
        _logger.warning(
            "%s runs on its reference %s: no other kernel is admissible (layerzero.explain shows why)",
            operation,
            kernel_id,
        )


def notice(kind: str, operation: str, text: str) -> None:
    """What no exception says: a layout that was assumed, a kernel that failed and was answered for (once each)."""
    if kind == "layout":
        warnings.warn(text, LayerZeroLayoutWarning, stacklevel=2)  # the door's frame is C: the caller's is next
    elif (operation, text) not in _told and len(_told) < _MOST_TOLD:
        _told.add((operation, text))
        _logger.warning("%s: %s", operation, text)
