"""Measured records (schemas/records.schema.json) in files and in the performance database: read, checked and written by
the engine.

The database is one SQLite file that processes and, by `merge`, machines share: `layerzero perfdb --help`. Its functions wait
for other processes' locks; `queue` alone may be called where operations are served.
"""

import atexit
import json
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from layerzero import _layerzero
from layerzero.errors import ConfigError
from layerzero.host import signing
from layerzero.host.files import replaced

ROLE = "records"  # of signed files

_at_exit = False  # the queue is flushed when the process ends


def read(path: str | PathLike[str], *, outside: bool = False) -> list[dict[str, Any]]:
    """Returns the records of a file, with null for unknown values; a ConfigError says what is wrong and where. `outside`: a
    file of another machine or user, which has to be signed if the policy requires it (UntrustedFileError)."""
    content = signing.read(path, ROLE) if outside else Path(path).read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "JSON in UTF-8", str(error)) from None
    return json.loads(_layerzero.records(text, str(path)))["records"]


def write(path: str | PathLike[str], records: Sequence[dict[str, Any]]) -> None:
    """Checks and writes records, one per line; equal records produce equal bytes."""
    text = _layerzero.records(_document(records), str(path))
    with replaced(path) as file:
        file.write(text.encode())


def database_state() -> dict[str, Any]:
    """Returns what this process knows of the database without reading it again: its path, SQLite's version and journal, rows,
    problem, and the counts of the queue."""
    return _ask("state")


def read_outside(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Returns the rows of another machine's database, which has to be signed if the policy requires it (UntrustedFileError)."""
    with signing.checked(path, ROLE) as file:
        return read_database(file)


def read_database(path: str | PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Returns all rows of a database, by default this machine's; none if there is no file. ConfigError: it is damaged, locked,
    of a newer format or no database; NotInstalledError: there is no SQLite."""
    return json.loads(_layerzero.perfdb("read", _arguments(path)))["records"]


def write_database(
    records: Sequence[dict[str, Any]], path: str | PathLike[str] | None = None, how: str = "replace"
) -> dict[str, int]:
    """Writes records in one transaction and returns how many were added, replaced, unchanged and removed.

    `how`: "replace" rows of the same key, "newer" if they were measured later, or "replace_run", which also removes rows of
    the same operation, device and run that are not among the records.
    """
    return json.loads(_layerzero.perfdb("write", _arguments(path, how=how, document=_document(records))))


def merge_database(source: str | PathLike[str], path: str | PathLike[str] | None = None) -> dict[str, int]:
    """Adds the rows of another database; of equal keys the later measurement stays. Returns the counts. The source has to be
    signed if the policy requires it (UntrustedFileError)."""
    with signing.checked(source, ROLE) as file:
        return json.loads(_layerzero.perfdb("write", _arguments(path, how="newer", **{"from": fspath(file)})))


def vacuum_database(path: str | PathLike[str] | None = None) -> dict[str, Any]:
    """Removes rows that are of no use any more and frees their space; makes a new file of the rows that can be read if the
    old one is damaged, which is kept under another name. Returns what was done."""
    return json.loads(_layerzero.perfdb("vacuum", _arguments(path)))


def queue(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Hands records to the thread that writes them into this machine's database, and returns the counts of the queue.

    Never waits for the disk: of more than 1,024 waiting records the oldest are dropped and counted. With `perfdb.enabled:
    false` in the policy nothing is kept. The queue is written out when the process ends.
    """
    global _at_exit
    counts = _ask("queue", document=_document(records))
    if not _at_exit:
        _at_exit = True
        atexit.register(flush, 5)
    return counts


def flush(seconds: float = 30) -> dict[str, Any]:
    """Waits until the records that were queued are written, at most so long; returns the counts of the queue."""
    return _ask("flush", seconds=float(seconds))


def _document(records: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"schema_version": "1.0", "records": list(records)})


def _arguments(path: str | PathLike[str] | None, **others: Any) -> str:
    return json.dumps({"path": fspath(path) if path is not None else "", **others})


def _ask(command: str, **arguments: Any) -> dict[str, Any]:
    return json.loads(_layerzero.perfdb(command, json.dumps(arguments)))
