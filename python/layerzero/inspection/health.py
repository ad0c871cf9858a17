"""`lz.health()`: kernels that failed, what is kept from being selected, and whether the process should be restarted."""

import json
from typing import Any

from layerzero import _layerzero, backends
from layerzero.host.typed import typed
from layerzero.inspection.report import Record
from layerzero.inspection.text import table


class Health(Record):
    """status: "ok", "degraded" (some kernels are not selected) or "restart" (a new process is better than this one).

    reasons: {"code", "text", "fix"}, why it is not ok. breakers: kernels that failed in this process, with `state`
    ("closed", "open", "half_open"), counts of `outcomes` and the last error. quarantine: rows that keep a kernel from
    some calls until its version changes, of this machine and as shipped. graph_safe: kernels whose safety in CUDA graphs
    was proven here (`lz.graphs`). error_budget: failed runs within 10 minutes
    and how many are allowed. folder: where the quarantine is kept; problem: what is wrong with its file.
    """

    __slots__ = ()

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return self._data["status"] == "ok"

    def __str__(self) -> str:
        return health_text(self._data)


def health() -> Health:
    """Returns the health of kernels in this process and on this machine."""
    backends.register_files()
    return Health(json.loads(_layerzero.health()))


@typed
def reset_health(kernel: str = "") -> int:
    """Closes the breakers of kernels and removes what this machine has learned about them; returns how many there were.

    kernel: an id, globs allowed; empty: all. Rows that LayerZero ships stay.
    """
    backends.register_files()
    return _layerzero.reset_health(kernel)


def health_text(data: dict[str, Any]) -> str:
    """Returns the report as text."""
    budget = data["error_budget"]
    lines = [f"health: {data['status']} ({budget['used']} failed runs in 10 minutes, {budget['allowed']} are allowed)"]
    lines += [f"  {reason['code']}: {reason['text']}; {reason['fix']}" for reason in data["reasons"]]
    if data["problem"]:
        lines.append(f"problem: {data['problem']}")
    parts = ["\n".join(lines)]
    if data["breakers"]:
        rows = [
            [b["kernel_id"], b["operation"], b["state"], _outcomes(b), _seconds(b["retry_in_s"]), b["last"]]
            for b in data["breakers"]
        ]
        parts.append(table(["kernel", "operation", "breaker", "outcomes", "tried again", "last error"], rows, "Failed"))
    if data["quarantine"]:
        rows = [
            [q["kernel"], q["operation"], q["calls"], q["outcome"], q["detail"], _origin(q)] for q in data["quarantine"]
        ]
        parts.append(table(["kernel", "operation", "calls", "outcome", "detail", "from"], rows, "Quarantine"))
    if data["graph_safe"]:
        rows = [[q["kernel"], q["operation"], q["calls"], _origin(q)] for q in data["graph_safe"]]
        parts.append(table(["kernel", "operation", "calls", "from"], rows, "Safe in CUDA graphs"))
    return "\n\n".join(parts)


def _outcomes(breaker: dict[str, Any]) -> str:
    return ", ".join(f"{count} {name}" for name, count in breaker["outcomes"].items())


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"in {max(seconds, 0):.0f} s"


def _origin(row: dict[str, Any]) -> str:
    return f"{row['origin'].rpartition('/')[2]}{'' if row['in_force'] else ', not in force'}"
