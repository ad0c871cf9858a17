"""Locks that a forked child finds free."""

import os
import threading
from typing import Any

_locks: list[Any] = []
_taken: list[Any] = []  # by the thread that forks


def lock() -> Any:
    """Returns a reentrant lock of a module. A fork waits until no other thread holds one of them: the child finds what they guard whole."""
    made = threading.RLock()
    _locks.append(made)
    return made


def _take_all() -> None:
    """In no order that threads would have to keep: while it waits for one lock, it holds none."""
    global _taken
    while True:
        taken: list[Any] = []
        for each in list(_locks):
            if not each.acquire(blocking=False):
                break
            taken.append(each)
        else:
            _taken = taken
            return
        _release(taken)
        with each:
            pass


def _release(taken: list[Any]) -> None:
    for each in taken:
        each.release()


def _release_all() -> None:
    _release(_taken)


os.register_at_fork(before=_take_all, after_in_parent=_release_all, after_in_child=_release_all)
