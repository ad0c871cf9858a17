"""Kills writers of the performance database with SIGKILL, cycle by cycle; nothing acknowledged may be lost.

  python bench/perfdb_kill.py --cycles 10000 --json bench/results/perfdb-kill.json     about 25 minutes on 2 cores

In each cycle 4 processes write pairs of records, each pair in one transaction, and note the pair in a file of their own once
the write has returned. After 20 to 100 ms all are killed. Then the database must be whole (it checks every row and the sum
of all), have both halves of every pair, and every pair that was noted. Process death only, no loss of power. Exit code 1: a
cycle was bad. SIGTERM ends the run after a cycle, with the result of those that were made.

The journal is that of the SQLite that is found: LD_LIBRARY_PATH=<folder with another libsqlite3.so.0> tests another one.
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

from common import finish, record
from layerzero import _layerzero, perf_records

HALVES = ("a", "b")
MOST_ROWS = 4000


def half_of(writer: int, number: int, half: str) -> dict:
    return record(kernel_id=f"writer{writer}.{half}", axes={"...": number})


def write_pairs(writer: int, database: pathlib.Path, notes: pathlib.Path) -> None:
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        number = time.monotonic_ns()
        perf_records.write_database([half_of(writer, number, half) for half in HALVES], database)
        os.write(file, f"{number}\n".encode())


def noted(notes: pathlib.Path) -> set[int]:
    """Returns the numbers of whole lines."""
    text = notes.read_text() if notes.exists() else ""
    return {int(line) for line in text[: text.rfind("\n") + 1].split()}


def problem_of(folder: pathlib.Path, writers: int) -> tuple[str, int]:
    """Returns what is wrong ("": nothing) and the number of rows; removes the files when there are many."""
    database = folder / "perfdb.sqlite"
    try:
        rows = perf_records.read_database(database)
    except Exception as error:
        return str(error), 0
    found: dict[str, set[int]] = {}
    for row in rows:
        found.setdefault(row["kernel_id"], set()).add(row["axes"]["..."])
    for writer in range(writers):
        first, second = (found.get(f"writer{writer}.{half}", set()) for half in HALVES)
        if first != second:
            return f"{len(first ^ second)} halves of transactions of writer {writer}", len(rows)
        if lost := noted(folder / f"noted.{writer}") - first:
            return f"{len(lost)} acknowledged writes of writer {writer} are lost", len(rows)
    if len(rows) > MOST_ROWS:
        for path in folder.iterdir():
            path.unlink()
    return "", len(rows)


def cycle(folder: pathlib.Path, writers: int) -> None:
    children = []
    try:
        for writer in range(writers):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                try:
                    write_pairs(writer, folder / "perfdb.sqlite", folder / f"noted.{writer}")
                finally:
                    os._exit(1)
            children.append(child)
        time.sleep(random.uniform(0.02, 0.1))
    finally:  # if this program is interrupted too
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--folder", type=pathlib.Path, help="on the disk to be tested; default: a temporary folder")
    parser.add_argument("--json", type=pathlib.Path, help="write the result to this file")
    given = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lz-perfdb-", dir=given.folder))
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    start, rows, bad, done = time.time(), 0, [], 0
    while done < given.cycles and not stopped:
        cycle(folder, given.writers)
        problem, count = problem_of(folder, given.writers)
        rows, done = max(rows, count), done + 1
        if problem:
            bad.append(f"cycle {done}: {problem}")
            print(bad[-1], file=sys.stderr)
            break
        if done % 500 == 0:
            print(f"{done} cycles, {time.time() - start:.0f} s", file=sys.stderr)
    result = {
        "sqlite": perf_records.database_state()["sqlite"],
        "layerzero": _layerzero.build_id()[1],
        "cycles": done,
        "writers": given.writers,
        "kills": done * given.writers,
        "most_rows": rows,
        "seconds": round(time.time() - start, 1),
        "bad": bad,
        "ok": not bad,
    }
    if not bad:
        shutil.rmtree(folder)
    return finish(result, given.json)


if __name__ == "__main__":
    sys.exit(main())
