"""How far the warm-up of this process has come, for metrics and readiness; it imports nothing heavy."""

from typing import Any

from layerzero.host import forks

_guard = forks.lock()
_done = {"calls": 0, "ready": 0, "runs": 0}


def warmed(report: Any) -> None:
    """Counts a WarmupReport."""
    with _guard:
        _done["runs"] += 1
        _done["calls"] += len(report.calls)
        _done["ready"] += sum(call.state == "ready" for call in report.calls)


def warmups() -> dict[str, int]:
    """Returns {"runs": warm-ups of this process, "calls": of them, "ready": of these}."""
    with _guard:
        return dict(_done)
