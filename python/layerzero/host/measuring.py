"""What measures while a process serves: perfdb.auto_tune, perfdb.sample_rate and LAYERZERO_RECORD, applied at import and
after each change of the policy."""

import atexit
import os

from layerzero import _layerzero
from layerzero.host.policy import in_worker

_FLUSH_S = 2.0  # that the end of a process waits for the events of its last samples, and for the database
_at_exit = False


def apply() -> None:
    """Starts and stops what the process's policy says. In a worker nothing is measured."""
    global _at_exit
    tunes, samples = _layerzero.measuring_policy()
    if in_worker:
        return
    if samples and not _at_exit:
        _at_exit = True
        atexit.register(_flush)
    if tunes or _tunes():
        from layerzero.tuning import auto

        auto.apply(tunes)


def _tunes() -> bool:
    import sys

    auto = sys.modules.get("layerzero.tuning.auto")
    return auto is not None and auto.is_running()


def _flush() -> None:
    _layerzero.flush_served_calls(_FLUSH_S)
    from layerzero import perf_records

    perf_records.flush(_FLUSH_S)


def apply_at_import() -> None:
    """Does apply(), and begins to record the process if LAYERZERO_RECORD names a file."""
    apply()
    if not in_worker and os.environ.get("LAYERZERO_RECORD"):
        from layerzero.tuning.workload import record_process

        record_process()
