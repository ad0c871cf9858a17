"""What the policy exports (metrics.listen, metrics.file, trace.*, log_json), applied after each change of the policy."""

import warnings

from layerzero import _layerzero
from layerzero.host.policy import in_worker

_any = False


def apply() -> None:
    """Starts and stops what the process's policy says. Raises its errors: a missing package, an address in use."""
    global _any
    wanted = _layerzero.exports()
    if wanted is None and not _any:
        return
    _any = True
    from layerzero.telemetry.exports import apply

    apply(wanted)


def apply_at_import() -> None:
    """Does apply(); an error is a warning, since calls work without exports. A worker exports nothing."""
    if in_worker:
        return
    try:
        apply()
    except Exception as error:
        warnings.warn(f"nothing is exported as the policy says: {error}", stacklevel=3)
