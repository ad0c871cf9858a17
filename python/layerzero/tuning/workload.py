"""Workloads: the calls of a program by class, with how often each occurs. No contents of tensors are recorded.

`layerzero record -- python serve.py` writes one; `record()` does it for a block of code, and the variable
LAYERZERO_RECORD=<file> for a whole process.
"""

import atexit
import contextlib
import json
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from layerzero import _layerzero
from layerzero.contracts import contracts
from layerzero.errors import ConfigError, FileError, InvalidRequestError
from layerzero.host import blocks, watching
from layerzero.host.files import check_writable, replaced
from layerzero.host.typed import typed

VERSION = "1.0"
VARIABLE = "LAYERZERO_RECORD"
_LONGEST = 64 << 20  # bytes of a workload file


@dataclass(frozen=True)
class Entry:
    """One class of calls. `line`: the call in the grammar of bench cases (docs/guide/tuning.md)."""

    name: str  # the operation's flat name
    line: str
    count: int = 1
    device: str = "cpu"
    execution: str = "eager"
    operation: str = ""
    dtype: str = ""
    axes: dict[str, int] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)  # what ran, and how often
    drawn: bool = False  # the line says what its tables and lengths are filled with, as a bench case does

    def text(self) -> str:
        """Returns the call as messages name it."""
        return f"{self.name} {self.line}"


@dataclass
class Workload:
    """Classes of calls, the most frequent first."""

    calls: list[Entry]
    left_out: int = 0  # calls of further classes

    def to_dict(self) -> dict[str, Any]:
        """Returns what is written to a file: schemas/workload.schema.json."""
        version, build = _layerzero.build_id()
        calls = [{k: v for k, v in vars(e).items() if k != "drawn" or v} for e in self.calls]
        about = {"schema_version": VERSION, "layerzero_version": version, "build_id": build}
        return about | {"left_out": self.left_out, "calls": calls}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file."""
        with replaced(path, folders=True) as file:
            file.write((json.dumps(self.to_dict(), indent=1) + "\n").encode())


def read(path: str | os.PathLike[str]) -> Workload:
    """Reads a workload file. ConfigError: it is none."""

    def wrong(wanted: str, got: str) -> ConfigError:
        return ConfigError(str(path), wanted, got, "write it with `layerzero record`")

    if not Path(path).is_file():
        raise InvalidRequestError("workload", "a file that `layerzero record` wrote", repr(str(path)))
    if Path(path).stat().st_size > _LONGEST:
        raise wrong(f"a workload of at most {_LONGEST >> 20} MiB", "a larger file")
    try:
        document = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise wrong("JSON", str(error)) from None
    if not isinstance(document, dict) or document.get("schema_version") != VERSION:
        raise wrong(f'"schema_version": "{VERSION}"', "another file")
    rows = document.get("calls")
    if not isinstance(rows, list):
        raise wrong('a list "calls"', type(rows).__name__)
    return Workload([_entry(row, wrong) for row in rows], _count(document.get("left_out", 0), wrong))


def _count(value: Any, wrong: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise wrong("a whole number of calls", repr(value))
    return value


def _entry(row: Any, wrong: Any) -> Entry:
    kinds: dict[str, type] = {"name": str, "line": str, "device": str, "execution": str, "operation": str, "dtype": str}
    kinds |= {"axes": dict, "options": dict, "kernels": dict, "drawn": bool}
    if not isinstance(row, dict) or not set(row) <= {*kinds, "count"} or not {"name", "line"} <= set(row):
        raise wrong("calls with name, line and count", str(row)[:200])
    for key, kind in kinds.items():
        if key in row and not isinstance(row[key], kind):
            raise wrong(f"{key}: {kind.__name__}", repr(row[key]))
    if row["name"] not in contracts():
        raise wrong("a known operation", repr(row["name"]))
    return Entry(**(row | {"count": _count(row.get("count", 1), wrong)}))


def recorded() -> Workload:
    """Returns what this process has recorded so far."""
    found = json.loads(_layerzero.served_calls())
    calls = sorted((Entry(**row) for row in found["calls"]), key=lambda e: (-e.count, e.name, e.line))
    return Workload(calls, found["left_out"])


class record:
    """Records the calls of a `with` block by class; at its end they are written to `path`, if that is given.

    with lz.record("workload.json") as recording: model.generate(**inputs)
    lz.tune(recording.workload)

    Kernels of all threads are counted, the steps of programs and compiled graphs among them; a kernel in a captured CUDA
    graph is counted at the capture alone. Only one recording is open in a process.
    """

    @typed
    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path, self._is_open = path, False
        self.workload = Workload([])

    def __enter__(self) -> "record":
        global _open
        if self._path is not None:
            check_writable("record", self._path, folders=True)
        if _open:
            raise InvalidRequestError("record", "one recording at a time", "another one that is open")
        _open = self._is_open = True
        watching.record_served_calls(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _open
        from layerzero.tuning import auto

        if not self._is_open:
            raise blocks.not_entered("record")
        self.workload = recorded()
        watching.record_served_calls(auto.is_running())
        _open = self._is_open = False
        if self._path is not None:
            self.workload.write(self._path)


_open = False


@contextlib.contextmanager
def further() -> Iterator[record]:
    """Records as `record` does, or notes what the recording that is open counts meanwhile and leaves it as it is."""
    if not _open:
        with record() as recording:
            yield recording
        return
    recording = record()
    before = {(e.device, e.execution, e.text()): e.count for e in recorded().calls}
    yield recording
    for entry in recorded().calls:
        count = entry.count - before.get((entry.device, entry.execution, entry.text()), 0)
        if count:
            recording.workload.calls.append(replace(entry, count=count))


def record_process() -> None:
    """Records this process until it ends, into the file that the variable names; "{pid}" in it is the process's id."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    recording = record(re.sub(r"\{pid\}", str(os.getpid()), path))
    try:
        recording.__enter__()
    except FileError as error:  # the program runs all the same
        warnings.warn(f"{VARIABLE}: nothing is recorded: {error}", stacklevel=2)
        return
    owner = os.getpid()
    atexit.register(lambda: recording.__exit__(None, None, None) if os.getpid() == owner else None)
