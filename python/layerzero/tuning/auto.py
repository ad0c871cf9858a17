"""Tuning without being asked: perfdb.auto_tune measures what a process calls and nobody has measured, auto_tune_on_warmup
what a warm-up calls. Both in a process of its own at the lowest priority; operations never wait for it."""

import contextlib
import logging
import os
import threading
import time
from typing import Any

from layerzero import _layerzero
from layerzero.errors import LayerZeroError
from layerzero.host.policy import policy_in_force

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
        from layerzero.tuning import session, workload

        found = [e for e in workload.recorded().calls if e.count >= OFTEN and e.text() not in self.seen]
        by_device: dict[str, list[workload.Entry]] = {}
        for entry in found:
            by_device.setdefault(entry.device, []).append(entry)
        report = None
        for device, entries in by_device.items():
            calls = session.entries_of(workload.Workload(entries), (), {}, device)
            options = session.Options(device=device, seconds=BUDGET_S, nice=NICE)
            report = session.run(calls, options)
            self.seen |= {entry.text() for entry in entries}
        return report


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
        _layerzero.record_served_calls(True)
        _running = _Tuner()
        _running.thread.start()
    elif _running is not None:
        _running.stopped.set()
        _running = None
        _layerzero.record_served_calls(False)


def once() -> Any:
    """Does at once what the thread does every half a minute; returns its report, or None."""
    return _running.once() if _running is not None else None


def wanted_on_warmup() -> bool:
    """True if the policy's auto_tune_on_warmup is set."""
    return bool(policy_in_force()["keys"]["auto_tune_on_warmup"]["value"])


@contextlib.contextmanager
def warming_up(budget_s: float = BUDGET_S) -> Any:
    """Tunes the calls of a warm-up at its end, if the policy says auto_tune_on_warmup; yields a dict whose "tuned" is the
    report then.

    with warming_up() as done: model(example)
    """
    done: dict[str, Any] = {"tuned": None}
    if not wanted_on_warmup():
        yield done
        return
    from layerzero.tuning import session, workload

    start = time.monotonic()
    with workload.record() as recording:
        yield done
    calls = recording.workload.calls
    if calls:
        report = session.tune(workload.Workload(calls), budget_s=budget_s)
        done["tuned"] = report
        took = time.monotonic() - start
        _logger.info("auto-tune on warm-up: %d calls, %d records in %.0f s", report.calls, report.records, took)
