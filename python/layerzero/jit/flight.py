"""What processes agree on before they compile: one of them for a key, few at a time, and only with memory to spare.

Locks are the kernel's (flock): those of a process that is killed are free at once, and files are never removed.
"""

import contextlib
import fcntl
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import IO

from layerzero.jit import store

_POLL = 0.02  # seconds
MEMINFO = pathlib.Path("/proc/meminfo")


class GaveUpError(TimeoutError):
    """Another process held a lock, or memory was short, for longer than this one waits."""


def _open(name: str) -> IO[bytes] | None:
    """Opens a lock file; None on a disk that cannot be written, where processes do not share artifacts either."""
    try:
        folder = store.folder("locks")
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / name).open("ab")
    except OSError:
        return None


def _try(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: each process is on its own
        return True
    return True


def _wait(what: str, done: Callable[[], bool], until: float) -> None:
    while not done():
        if time.monotonic() >= until:
            raise GaveUpError(f"waited too long for {what}")
        time.sleep(_POLL)


@contextlib.contextmanager
def alone(name: str, until: float) -> Iterator[None]:
    """Holds the lock of a name among all processes of the user. GaveUpError at `until` of time.monotonic()."""
    file = _open(f"{name}.lock")
    if file is None:
        yield
        return
    with file:
        _wait(name, lambda: _try(file), until)
        yield


def of_key(key: str, until: float) -> contextlib.AbstractContextManager[None]:
    """Holds the lock of a key. Keys share 4096 files, so that their number has a limit."""
    return alone(f"key-{key[:3]}", until)


@contextlib.contextmanager
def slot(count: int, until: float) -> Iterator[int]:
    """Holds one of `count` slots, which all processes of the user share: that many compile at the same time."""
    files = [_open(f"slot-{i}.lock") for i in range(count)]
    with contextlib.ExitStack() as stack:
        usable = [(i, stack.enter_context(file)) for i, file in enumerate(files) if file is not None]
        taken: list[int] = []

        def take() -> bool:
            taken.extend(i for i, file in usable if not taken and _try(file))
            return bool(taken) or not usable

        _wait(f"one of {count} slots for compilations (jit.max_concurrent_jit)", take, until)
        for i, file in usable:
            if i not in taken:
                file.close()
        yield taken[0] if taken else 0


def free_memory() -> int | None:
    """Returns the bytes that the system could give to new processes; None where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def wait_for_memory(wanted: int, until: float) -> None:
    """Waits until `wanted` bytes of memory are free."""

    def enough() -> bool:
        free = free_memory()
        return free is None or free >= wanted

    _wait(f"{wanted >> 20} MiB of free memory (jit.memory_mb, memory_headroom_mb)", enough, until)
