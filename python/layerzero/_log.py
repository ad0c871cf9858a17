"""One line for what a user should know of a selection; silent unless the logger `layerzero` is asked."""

import logging

_logger = logging.getLogger("layerzero")
_logger.addHandler(logging.NullHandler())
_told: set[tuple[str, str]] = set()


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
