"""Tuning without being asked: perfdb.auto_tune measures what a process calls and nobody has measured, auto_tune_on_warmup
what a warm-up calls. Both in a process of its own, the first at the lowest priority: operations never wait for it. A warm-up
does, so what it waits for has the priority of its own process."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from layerzero.errors import LayerZeroError
from layerzero.host import watching
from layerzero.host.policy import policy_in_force

if TYPE_CHECKING:
    from layerzero.tuning.workload import Entry

PERIOD_S = 30.0  # between two looks at what was called
BUDGET_S = 60.0  # of one tuning
OFTEN = 10  # calls of a class that are worth a measurement
NICE = 19


_logger = logging.getLogger("layerzero")


class _Tuner:
    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.seen: set[str] = set()  # calls that were tuned, or cannot be
        self.pid = os.getpid()
        self.thread = threading.Thread(target=self._run, name="layerzero tuning", daemon=True)

    def _run(self) -> None:
        while not self.stopped.wait(PERIOD_S):
            try:
                self.once()
            except LayerZeroError as error:  # a full disk, a damaged database: operations go on without
                _logger.warning("auto-tune: %s", error)

    def once(self) -> Any:
        """Tunes the classes that were called often and not seen before; returns the report, None if there were none."""
        from layerzero.tuning import workload

        found = [e for e in workload.recorded().calls if e.count >= OFTEN and e.text() not in self.seen]
        reports = tuned(found, BUDGET_S, NICE)
        self.seen |= {entry.text() for entry in found}
        return reports[-1] if reports else None


def tuned(entries: "list[Entry]", budget_s: float, nice: int = 0) -> list[Any]:
    """Tunes calls, those of each device apart; returns the reports. budget_s: for all of them. nice: of the other process."""
    from layerzero.tuning import session, workload

    by_device: dict[str, list[Entry]] = {}
    for entry in entries:
        by_device.setdefault(entry.device, []).append(entry)
    reports, until = [], time.monotonic() + budget_s
    for device, those in by_device.items():
        calls = session.entries_of(workload.Workload(those), (), {}, device)
        left = max(0.0, until - time.monotonic())
        reports.append(session.run(calls, session.Options(device=device, seconds=left, nice=nice)))
    return reports


_running: _Tuner | None = None


def is_running() -> bool:
    """True if this process tunes by itself."""
    return _running is not None and _running.pid == os.getpid()


def apply(wanted: bool) -> None:
    """Begins to record this process's calls and to tune them, or stops."""
    global _running
    if wanted == is_running():
        return
    if wanted:
        watching.record_served_calls(True)
        _running = _Tuner()
        _running.thread.start()
    elif _running is not None:
        _running.stopped.set()
        _running = None
        watching.record_served_calls(False)


def once() -> Any:
    """Does at once what the thread does every half a minute; returns its report, or None."""
    return _running.once() if _running is not None else None


def wanted_on_warmup() -> bool:
    """True if the policy's auto_tune_on_warmup is set."""
    return bool(policy_in_force()["keys"]["auto_tune_on_warmup"]["value"])


@contextlib.contextmanager
def warming_up(budget_s: float | None = None) -> Iterator[dict[str, Any]]:
    """Tunes the calls of a warm-up at its end, if the policy says auto_tune_on_warmup; yields a dict whose "tuned" is the
    list of reports then, one for each device. budget_s: of the whole; default: 60 s for the tuning.

    with warming_up() as done: model(example)

    What keeps calls from being tuned (a full disk, a damaged database) is a warning; the warm-up is done all the same.
    """
    done: dict[str, Any] = {"tuned": []}
    if not wanted_on_warmup():
        yield done
        return
    from layerzero.tuning import workload

    start = time.monotonic()
    with workload.further() as recording:
        yield done
    calls, left = recording.workload.calls, BUDGET_S
    if budget_s is not None:
        left = budget_s - (time.monotonic() - start)
    if not calls or left <= 0:
        return
    try:
        done["tuned"] = tuned(calls, left)
    except LayerZeroError as error:
        _logger.warning("auto-tune on warm-up: %s", error)
        return
    records = sum(report.records for report in done["tuned"])
    _logger.info("auto-tune on warm-up: %d calls, %d records", len(calls), records)
