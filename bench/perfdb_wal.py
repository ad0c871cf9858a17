"""What damages a write-ahead log of SQLite before 3.51.3 (the WAL-reset fault): two writers, three processes that checkpoint
all the time, and random stops. The performance database must stay whole; a plain WAL database is the control.

  python bench/perfdb_wal.py --seconds 90 --json bench/results/perfdb-wal.json

Where this Python's SQLite has the fault by its version, the control is mostly damaged within a minute or two: "control_found_the_fault"
says so, and what a clean database shows otherwise is little. On a file system in memory (/dev/shm) it is found sooner than on a slow
disk, where the log is reset too seldom. Writers pause up to
1.5 ms between commits: without the pauses the log is never reset and nothing is tested. Exit code 1: the database was damaged, or
lost a row that was acknowledged, or nothing was written.
"""

import argparse
import mmap
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import struct
import sys
import tempfile
import time
from collections.abc import Callable

from common import finish
from layerzero import perf_records
from perfdb_kill import half_of


class Shared:
    """Whether everybody pauses, and the last number that each writer saw committed."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 4096)

    def __getitem__(self, i: int) -> int:
        return struct.unpack_from("q", self.memory, 8 * i)[0]

    def __setitem__(self, i: int, value: int) -> None:
        struct.pack_into("q", self.memory, 8 * i, value)

    def wait(self) -> None:
        while self[0]:
            time.sleep(0.0002)


def connect(path: pathlib.Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=2, isolation_level=None)
    db.execute("PRAGMA synchronous=NORMAL")
    return db


def plain_writer(path: pathlib.Path, writer: int, shared: Shared) -> None:
    db = connect(path)
    db.execute("PRAGMA wal_autocheckpoint=0")
    number = 0
    while True:
        shared.wait()
        try:
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO t VALUES(?, ?, randomblob(?))", (writer, number + 1, random.randrange(600)))
            db.execute("INSERT OR REPLACE INTO h VALUES(?, ?)", (writer, number + 1))
            db.execute("DELETE FROM t WHERE w = ? AND k < ?", (writer, number - 200))
            db.execute("COMMIT")
            number += 1
            shared[1 + writer] = number
        except sqlite3.OperationalError:
            if db.in_transaction:
                db.execute("ROLLBACK")
        time.sleep(random.uniform(0, 0.0015))


def plain_problem(path: pathlib.Path, shared: Shared) -> str:
    acknowledged = shared[1], shared[2]
    db = connect(path)
    try:
        answer = db.execute("PRAGMA integrity_check").fetchone()[0]
        if answer != "ok":
            return str(answer)[:100]
        last = dict(db.execute("SELECT w, k FROM h"))
        return "".join(f"writer {w} lost rows" for w in (0, 1) if last.get(w, 0) < acknowledged[w])
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        db.close()


def own_writer(path: pathlib.Path, writer: int, shared: Shared) -> None:
    number = 0
    while True:
        shared.wait()
        number += 1
        perf_records.write_database(
            [half_of(writer, number % 200, "a") | {"median_us": float(number), "p95_us": 1e9}], path
        )
        shared[1 + writer] = number
        time.sleep(random.uniform(0, 0.0015))


def own_problem(path: pathlib.Path, shared: Shared) -> str:
    acknowledged = shared[1], shared[2]
    try:
        rows = perf_records.read_database(path)
    except Exception as error:
        return str(error)
    last = [max((r["median_us"] for r in rows if r["kernel_id"] == f"writer{w}.a"), default=0) for w in (0, 1)]
    return "".join(f"writer {w} lost rows" for w in (0, 1) if last[w] < acknowledged[w])


def checkpointer(path: pathlib.Path, _: int, shared: Shared) -> None:
    db = connect(path)
    while True:
        shared.wait()
        try:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.DatabaseError:
            time.sleep(0.001)


def start(work: Callable[..., None], *arguments: object) -> int:
    child = os.fork()
    if child == 0:
        try:
            work(*arguments)
        finally:
            os._exit(1)
    return child


def attack(path: pathlib.Path, writer: Callable[..., None], problem_of: Callable[..., str], seconds: float) -> dict:
    """Returns what was found."""
    shared = Shared()
    children = [start(writer, path, w, shared) for w in (0, 1)]
    children += [start(checkpointer, path, c, shared) for c in range(3)]
    begin, problem, checks = time.time(), "", 0
    try:
        while not problem and time.time() - begin < seconds:
            for _ in range(400):
                child = random.choice(children)
                os.kill(child, signal.SIGSTOP)
                time.sleep(random.uniform(0, 0.003))
                os.kill(child, signal.SIGCONT)
                time.sleep(random.uniform(0, 0.0005))
            shared[0] = 1
            time.sleep(0.1)
            problem, checks = problem_of(path, shared), checks + 1
            shared[0] = 0
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    commits = shared[1] + shared[2]
    return {"problem": problem or None, "seconds": round(time.time() - begin, 1), "checks": checks, "commits": commits}


def has_the_fault(version: tuple[int, ...]) -> bool:
    """Returns whether an SQLite of this version has the WAL-reset fault (docs/design/0033-performance-database.md)."""
    mended = version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)
    return version >= (3, 7, 0) and not mended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90)
    in_memory = pathlib.Path("/dev/shm")
    parser.add_argument("--folder", type=pathlib.Path, default=in_memory if in_memory.is_dir() else None)
    parser.add_argument("--json", type=pathlib.Path, help="write the result to this file")
    given = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lz-perfdb-", dir=given.folder))
    control = folder / "control.sqlite"
    db = connect(control)
    db.execute("PRAGMA journal_mode=WAL")
    for sql in ("t(w INT, k INT, p BLOB, PRIMARY KEY(w, k))", "h(w INT PRIMARY KEY, k INT)"):
        db.execute(f"CREATE TABLE {sql}")
    db.execute("CREATE INDEX ti ON t(k)")
    db.close()
    own = folder / "perfdb.sqlite"
    perf_records.write_database([], own)
    result = {
        "sqlite": perf_records.database_state()["sqlite"],
        "sqlite_of_python": sqlite3.sqlite_version,
        "database": attack(own, own_writer, own_problem, given.seconds),
        "control": attack(control, plain_writer, plain_problem, given.seconds),
    }
    faulty, found = has_the_fault(sqlite3.sqlite_version_info), result["control"]["problem"] is not None
    result |= {"load_average": os.getloadavg(), "control_has_the_fault": faulty, "control_found_the_fault": found}
    result["ok"] = result["database"]["problem"] is None and result["database"]["commits"] > 0
    shutil.rmtree(folder)
    return finish(result, given.json)


if __name__ == "__main__":
    sys.exit(main())
